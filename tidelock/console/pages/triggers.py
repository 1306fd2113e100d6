"""Triggers: their webhooks and deliveries, and the form for a new one."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from nicegui import ui

from tidelock.console.api import ApiError, columns_of, live_tables
from tidelock.console.filters import Unfit
from tidelock.console.frame import Visit, page
from tidelock.console.pages.deliveries import Deliveries, delivery_page
from tidelock.console.parts.filterfield import WhereField
from tidelock.console.parts.forms import Segments, ask, button, choice, field
from tidelock.console.parts.tables import Column, PageTurner, Row, rows_table
from tidelock.console.parts.texts import chip, code_block, empty, link, panel, row

Json = dict[str, Any]

_ROWS = 50
#: not a possible name of a trigger
NEW = "/triggers/+new"

_LEAVES = {"not": "it no longer matches", "own": "another condition is true"}


@page("/triggers", title="Triggers", about="Webhooks for rows that enter or leave a condition")
async def triggers(visit: Visit) -> None:
    await TriggerList(visit).show()


@page(NEW, title="New trigger", about="When a row starts or stops matching, a webhook is sent")
async def new_trigger(visit: Visit) -> None:
    _way("New")
    await TriggerForm(visit).show()


@page("/triggers/{name}", title="Trigger", about="Its condition and its deliveries")
async def one_trigger(visit: Visit, name: str) -> None:
    found = await visit.api.get(f"/v1/triggers/{quote(name, safe='')}")
    _way(name)
    TriggerView(visit, found).show()
    await Deliveries(visit, name).show()


@page("/triggers/{name}/{event_id}", title="Delivery", about="Requests sent and responses received")
async def one_delivery(visit: Visit, name: str, event_id: str) -> None:
    _way(name, event_id)
    await delivery_page(visit, name, event_id)


def _way(name: str, event_id: str | None = None) -> None:
    with ui.element("div").classes("tl-crumbs"):
        link("Triggers", "/triggers")
        if event_id is None:
            ui.label(name)
        else:
            link(name, f"/triggers/{quote(name, safe='')}")
            ui.label(event_id)


class TriggerList:
    """Triggers by name, page by page."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._turning = PageTurner(visit, self._read)

    async def show(self) -> None:
        self._tenant: ui.input | None = None
        # First: a visitor who may not see triggers is told only that.
        found = await self._page()
        with row("tl-tools"):
            if self._visit.tenant is None:
                self._tenant = field("Tenant", hint="exactly", act=self._turning.restart)
            ui.element("div").classes("tl-grow")
            button("New trigger", lambda: ui.navigate.to(NEW), icon="plus", primary=True)
        with panel() as self._panel:
            tenant = [Column("tenant", "Tenant", wide=True)] if self._visit.tenant is None else []
            columns = [
                Column("name", "Name"),
                Column("state", "State", "chip"),
                Column("table", "Table"),
                Column("match", "Match", "mono", wide=True),
                *tenant,
                Column("webhook", "Webhook", "mono", wide=True),
            ]
            self._table = rows_table(columns, [], key="name", nothing="No trigger matches.")
            self._turning.draw()
        self._empty = ui.element("div")
        with self._empty, panel():
            text = "A trigger posts to a URL when a row of a table enters a condition, and when it leaves it."
            empty("bolt", "No trigger yet", f"{text} Create one with the button above.")
        self._fill(found)

    async def _page(self) -> Json:
        tenant = self._tenant.value if self._tenant is not None else None
        found: Json = await self._visit.api.get(
            "/v1/triggers", limit=_ROWS, cursor=self._turning.cursor, tenantId=tenant or None
        )
        return found

    async def _read(self) -> None:
        self._fill(await self._page())

    def _fill(self, found: Json) -> None:
        rows = [_row(item) for item in found["items"]]
        self._table.rows = rows
        self._turning.took(found)
        narrowed = self._tenant is not None and bool(self._tenant.value)
        there_are_none = not rows and not narrowed and not self._turning.has_back
        self._empty.set_visibility(there_are_none)
        if self._panel.parent_slot is not None:
            self._panel.parent_slot.parent.set_visibility(not there_are_none)


def _row(item: Json) -> Row:
    return {
        "_href": f"/triggers/{quote(item['name'], safe='')}",
        "name": item["name"],
        "state": "on" if item["enabled"] else "off",
        "state_tone": "good" if item["enabled"] else "plain",
        "table": item["table"],
        "match": json.dumps(item["match"]),
        "tenant": item["tenantId"],
        "webhook": item["webhook"],
    }


class TriggerView:
    """A trigger and its actions."""

    def __init__(self, visit: Visit, trigger: Json) -> None:
        self._visit = visit
        self._trigger = trigger
        self._path = f"/v1/triggers/{quote(trigger['name'], safe='')}"

    def show(self) -> None:
        trigger = self._trigger
        with panel():
            with row("tl-tools"):
                ui.label(trigger["name"]).classes("tl-name")
                self._state = ui.element("div").classes("tl-row")
                ui.element("div").classes("tl-grow")
                self._switch = button("", self._toggle)
                button("Delete", self._delete, icon="bin", danger=True)
            with ui.element("dl").classes("tl-facts"):
                self._fact("Table", trigger["table"], tenant=trigger["tenantId"])
                self._fact("Webhook", trigger["webhook"])
                self._fact("Created at sequence", str(trigger["createdSequence"]))
            with row():
                with ui.element("div").classes("tl-form-line tl-grow"):
                    ui.label("A row enters when").classes("tl-label")
                    code_block(_pretty(trigger["match"]))
                with ui.element("div").classes("tl-form-line tl-grow"):
                    ui.label("and leaves when").classes("tl-label")
                    code_block(_pretty(trigger["unmatch"]) if trigger["unmatch"] else "it is no longer true")
        self._show_state()

    def _fact(self, name: str, value: str, tenant: str | None = None) -> None:
        with ui.element("dt"):
            ui.label(name)
        with ui.element("dd"):
            ui.label(value if tenant is None else f"{value} of tenant {tenant}")

    def _show_state(self) -> None:
        enabled = self._trigger["enabled"]
        self._state.clear()
        with self._state:
            chip("on" if enabled else "off", "good" if enabled else "plain")
        self._switch.set("Disable" if enabled else "Enable", "pause" if enabled else "play")

    async def _toggle(self) -> None:
        async def change() -> None:
            self._trigger = await self._visit.api.send("PATCH", self._path, {"enabled": not self._trigger["enabled"]})
            self._show_state()

        if not self._trigger["enabled"]:
            await self._visit.tried(change)
            return
        text = "Changes while it is disabled are not sent, not even later. When enabled again, it starts afresh."
        if await ask("Disable this trigger?", text, "Disable"):
            await self._visit.tried(change)

    async def _delete(self) -> None:
        text = f"{self._trigger['name']} will be deleted, and its pending webhooks are not sent."
        if await ask("Delete this trigger?", text, "Delete", danger=True) and await self._visit.tried(
            lambda: self._visit.api.send("DELETE", self._path)
        ):
            ui.navigate.to("/triggers")


def _pretty(where: Json) -> str:
    return json.dumps(where, indent=2, ensure_ascii=False)


class TriggerForm:
    """The form for a new trigger."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit

    async def show(self) -> None:
        tables = await live_tables(self._visit.api)
        if not tables:
            text = "Tables come from streams with a key, meters and windows. Define one in tidelock.toml and restart."
            empty("bolt", "No table to watch", text)
            return
        asked = self._visit.query.get("table", "")
        table = asked if asked in tables else tables[0]
        columns = await columns_of(self._visit.api, table)
        self._place = ui.element("div")
        with self._place, panel(), ui.element("div").classes("tl-form"):
            self._name = field("Name", hint="letters, digits, _ . -", wide=True)
            if self._visit.tenant is None:
                self._tenant = field("Tenant", "default", hint="whose rows it sees", wide=True)
            self._table = choice("Table", tables, table, act=self._choose)
            with ui.element("div").classes("tl-form-line"):
                ui.label("A row enters when").classes("tl-label")
                self._match = WhereField(columns, {}, self._checked, hint="Every row matches. Add a condition.")
            with ui.element("div").classes("tl-form-line"):
                ui.label("and leaves when").classes("tl-label")
                self._leaves = Segments(_LEAVES, "not", self._leave, label="A row leaves")
                self._unmatch_place = ui.element("div")
                with self._unmatch_place:
                    self._unmatch = WhereField(columns, {}, self._checked, hint="Add a condition.")
                self._unmatch_place.set_visibility(False)
            self._webhook = field("Webhook", hint="https://example.com/hook", wide=True)
            with ui.element("div").classes("tl-form-line"):
                self._secret = field("Secret (optional)", hint="whsec_…", wide=True)
                ui.label("Leave it empty to generate one; it is shown once.").classes("tl-about")
            self._snapshot = ui.switch("Also send a webhook for each row that already matches").props("dense")
            self._trouble = ui.label("").classes("tl-bad-text").props('role="alert"')
            with row("tl-tools"):
                button("Create trigger", self._make, primary=True)
                button("Cancel", lambda: ui.navigate.to("/triggers"))

    async def _choose(self) -> None:
        columns = await columns_of(self._visit.api, self._table.value)
        self._match.use(columns)
        self._unmatch.use(columns)

    def _leave(self, how: str) -> None:
        self._unmatch_place.set_visibility(how == "own")

    def _checked(self) -> None:
        for where in (self._match, self._unmatch):
            try:
                where.where()
                where.tell(None)
            except Unfit as unfit:
                where.tell(unfit)

    async def _make(self) -> None:
        self._trouble.set_text("")
        try:
            made = await self._visit.api.send("POST", "/v1/triggers", self._draft())
        except (ApiError, Unfit) as error:
            self._trouble.set_text(str(error))
            return
        self._done(made)

    def _draft(self) -> Json:
        draft: Json = {
            "name": (self._name.value or "").strip(),
            "table": self._table.value,
            "match": self._match.where(),
            "webhook": (self._webhook.value or "").strip(),
            "snapshot": bool(self._snapshot.value),
        }
        if self._leaves.value == "own":
            draft["unmatch"] = self._unmatch.where()
        if self._visit.tenant is None and (self._tenant.value or "").strip():
            draft["tenantId"] = self._tenant.value.strip()
        if (self._secret.value or "").strip():
            draft["secrets"] = [self._secret.value.strip()]
        return draft

    def _done(self, made: Json) -> None:
        self._place.clear()
        with self._place, panel(), ui.element("div").classes("tl-form"):
            ui.label(f"{made['name']} is on").classes("tl-name")
            ui.label(
                f"It sees changes of {made['table']} after sequence {made['createdSequence']:,}, at which it was "
                "created."
            ).classes("tl-about")
            if made.get("secrets"):
                with ui.element("div").classes("tl-secret"):
                    ui.label("The secret is shown only once. The receiver verifies signatures with it.")
                    block = code_block("\n".join(made["secrets"]))
                    block.props('data-is="secret"')
            with row("tl-tools"):
                href = f"/triggers/{quote(made['name'], safe='')}"
                button("See deliveries", lambda: ui.navigate.to(href), primary=True)
