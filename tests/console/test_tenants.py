"""What pages show follows the tenant of the key, live messages and triggers too. Rows are folded by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.conftest import Databases
from tests.serving import Threaded
from tests.views.folding import Folding, folding, put
from tidelock.definitions import parse_definitions
from tidelock.ledger.apikeys import create_key
from tidelock.tables import tables_of

DEFINITIONS = parse_definitions(
    {"streams": {"orders": {"key": "id", "columns": {"id": "string", "state": "string"}}}, "meters": {"calls": {}}}
)
ORDERS = tables_of(DEFINITIONS)["orders"]
PATIENCE_MS = 30_000
READER, TELLER = ("read",), ("read", "triggers")

SignIn = Callable[[tuple[str, ...]], Page]


@dataclass
class Shared:
    """A ledger that two tenants share."""

    url: str
    folded: Folding
    #: by its scopes, of acme
    keys: dict[tuple[str, ...], str]

    def put(self, tenant: str, order: str) -> None:
        self.folded.fold([put(order, tenant, table=ORDERS, id=order, state="open")])


@pytest.fixture(scope="module")
def shared(databases: Databases, threaded: Threaded) -> Iterator[Shared]:
    with databases() as database, threaded(database_url=database.url, definitions=DEFINITIONS, key_cache_s=0) as url:

        async def key(*scopes: str) -> str:
            async with await database.connect() as connection:
                return (await create_key(connection, "acme", scopes))[1]

        with folding(database, DEFINITIONS) as folded:
            keys: dict[tuple[str, ...], str] = {scopes: asyncio.run(key(*scopes)) for scopes in (READER, TELLER)}
            made = Shared(url, folded, keys)
            made.put("acme", "ours")
            made.put("globex", "theirs")
            yield made


@pytest.fixture
def signed_in(shared: Shared, browser: Browser) -> Iterator[SignIn]:
    context = browser.new_context(base_url=shared.url)
    context.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)

    def sign_in(scopes: tuple[str, ...]) -> Page:
        page = context.new_page()
        page.goto("/login")
        page.get_by_label("API key").fill(shared.keys[scopes])
        page.get_by_role("button", name="Open the console").click()
        page.locator(".tl-page").wait_for()
        # A page that reaches the server too late reloads itself, which aborts a way to another page.
        page.wait_for_function("window.did_handshake")
        return page

    yield sign_in
    context.close()


def test_a_subscription_shows_no_other_tenants_rows(signed_in: SignIn, shared: Shared) -> None:
    page = signed_in(READER)
    page.goto("/subscriptions?table=orders")
    page.get_by_role("button", name="Snapshot first").click()
    page.get_by_role("button", name="Start").click()
    rows = page.locator(".tl-messages tbody tr")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("ours")
    shared.put("globex", "theirs-too")
    shared.put("acme", "ours-too")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("ours-too")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ('table=orders&where={"prize": {"_gt": 1}}', "there is no column prize; available: tenant_id, id, state"),
        ("table=trades", '"trades" is not available; tables: counters,'),
    ],
)
def test_an_address_that_fits_no_table_says_what_does(signed_in: SignIn, asked: str, said: str) -> None:
    page = signed_in(READER)
    page.goto(f"/subscriptions?{asked}")
    expect(page.locator(".tl-page")).to_contain_text(said)
    expect(page.get_by_text("This page failed")).to_have_count(0)


def test_a_subscription_to_which_nothing_has_come_says_that_it_listens(signed_in: SignIn) -> None:
    page = signed_in(READER)
    page.goto('/subscriptions?table=orders&where={"id": {"_eq": "nowhere"}}')
    expect(page.get_by_text("Nothing yet. Start the subscription")).to_be_visible()
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_text("No change has passed the filter yet.")).to_be_visible()


def test_a_key_that_may_only_read_is_shown_what_triggers_need(signed_in: SignIn) -> None:
    page = signed_in(READER)
    page.goto("/triggers")
    expect(page.locator(".tl-empty-text")).to_contain_text("scope triggers")


def test_what_is_wrong_with_a_new_trigger_is_said_beside_its_form(
    signed_in: SignIn,
) -> None:
    page = signed_in(TELLER)
    page.goto("/triggers")
    expect(page.locator(".tl-empty-title")).to_have_text("No trigger yet")
    page.goto("/triggers/+new?table=orders")
    expect(page.get_by_label("Tenant")).to_have_count(0)
    page.get_by_label("Name").fill("no spaces")
    page.get_by_label("Webhook").fill("http://127.0.0.1/hook")
    page.get_by_role("button", name="Create trigger").click()
    expect(page.locator(".tl-form [role=alert]")).to_contain_text("name")
    page.get_by_label("Name").fill("told")
    page.get_by_role("button", name="Create trigger").click()
    expect(page.locator(".tl-form [role=alert]")).to_contain_text("private")


def test_a_counter_that_is_not_there_says_what_to_do(signed_in: SignIn) -> None:
    page = signed_in(READER)
    page.goto("/counters")
    expect(page.get_by_text("Nothing has been counted yet.")).to_be_visible()
    page.get_by_label("Customer").fill("nobody")
    expect(page.get_by_text("No counter matches.")).to_be_visible()
    expect(page.get_by_label("Tenant")).to_have_count(0)
    page.goto("/counters/explain?metric=calls&customerRef=nobody")
    expect(page.locator(".tl-empty-title")).to_have_text("Nothing to explain")
    page.goto("/windows")
    expect(page.locator(".tl-empty-title")).to_have_text("No windows defined")


def test_an_empty_ledger_says_how_to_send_to_it_and_moves_on_by_itself(signed_in: SignIn, shared: Shared) -> None:
    """The last: rows were folded by hand, so that the ledger itself has been empty all along."""
    opened = [signed_in(READER), signed_in(READER)]
    for page, path in zip(opened, ("/", "/events"), strict=True):
        page.goto(path)
        expect(page.locator(".tl-empty-title")).to_have_text("The ledger is empty")
        first = f"curl -s {shared.url}/v1/events -H 'authorization: Bearer KEY'"
        expect(page.locator(".tl-empty pre")).to_contain_text(first)
    shared.folded.store.execute("UPDATE ledger_head SET ingress_sequence = 1")
    shared.folded.store.commit()
    for page in opened:
        expect(page.locator(".tl-empty")).to_have_count(0)
        expect(page.locator(".tl-table").first).to_be_visible()
