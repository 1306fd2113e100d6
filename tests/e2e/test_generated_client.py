"""What openapi-python-client makes of the API's document: every operation is called, and its answer is understood."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from types import ModuleType
from typing import Any
from urllib.request import urlopen

import pytest

from tests.faults.processes import until
from tests.stack import Stack

pytestmark = pytest.mark.stack

NAME = "tidelock_generated"
#: what it cannot express is left out, and said in so many words; anything else that it says is a defect of the document
EXPECTED_WARNINGS = ["Unsupported content type application/x-ndjson"]


class Generated:
    """The package, and a way to call what is in it."""

    def __init__(self, document: dict[str, Any], said: str) -> None:
        self.said = said
        #: operation id -> its group
        self.groups = {
            described["operationId"]: described["tags"][0].lower().replace("graphql", "graph_ql")
            for operations in document["paths"].values()
            for described in operations.values()
        }
        self.models = importlib.import_module(f"{NAME}.models")
        self.called: set[str] = set()

    def operation(self, name: str) -> ModuleType:
        return importlib.import_module(f"{NAME}.api.{self.groups[name]}.{name}")

    @contextmanager
    def caller(self, url: str) -> Iterator[Callable[..., Any]]:
        """Calls an operation by its id and gives what it answered, in the shape that the document promises."""

        def call(name: str, *path: str, gives: str, status: int = 200, **given: Any) -> Any:
            answer = self.operation(name).sync_detailed(*path, client=client, **given)
            self.called.add(name)
            assert (answer.status_code, type(answer.parsed).__name__) == (status, gives), answer.content
            return answer.parsed

        with importlib.import_module(NAME).Client(base_url=url, raise_on_unexpected_status=True) as client:
            yield call


@pytest.fixture(scope="module")
def generated(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Generated]:
    here = tmp_path_factory.mktemp("generated")
    with urlopen(f"{stack.url}/openapi.json") as answer:
        document = json.load(answer)
    (here / "openapi.json").write_text(json.dumps(document))
    # Formatting is not what is tested.
    (here / "config.json").write_text('{"post_hooks": []}')
    command = ["openapi_python_client", "generate", "--path", "openapi.json", "--config", "config.json"]
    command += ["--meta", "none", "--output-path", NAME]
    made = subprocess.run([sys.executable, "-m", *command], cwd=here, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    sys.path.insert(0, str(here))
    yield Generated(document, made.stdout + made.stderr)
    sys.path.remove(str(here))
    for name in [name for name in sys.modules if name.partition(".")[0] == NAME]:
        del sys.modules[name]


def test_nothing_of_the_document_is_left_out_but_what_is_known(generated: Generated) -> None:
    said = [
        line for line in generated.said.splitlines() if line.startswith(("Unsupported", "Cannot", "Unable", "type"))
    ]
    assert said == EXPECTED_WARNINGS


def test_every_operation_is_called_by_its_name_and_its_answer_understood(
    stack: Stack, generated: Generated, tenant: str
) -> None:
    with generated.caller(stack.url) as call:
        use(stack, call, generated.models, tenant)
    assert generated.called == set(generated.groups), "an operation has no example here"


def use(stack: Stack, call: Callable[..., Any], models: Any, tenant: str) -> None:
    """Every operation, as a program that meters calls would use it."""
    days = [f"2026-0{month}-01T00:00:00Z" for month in (1, 2)]
    events = [
        {"tenantId": tenant, "stream": "calls", "customerRef": "c", "ts": ts, "quantity": "1.5", "causalityKey": tenant,
         "data": {"a": [1, None]}}
        for ts in (days[1], days[0], days[1])
    ]  # fmt: skip
    batch = models.EventBatch.from_dict({"events": [*events, {"tenantId": tenant}]})
    made = call("record_events", gives="Answer", body=batch)
    kinds = [type(result).__name__ for result in made.results]
    assert kinds == ["Accepted", "Accepted", "Duplicate", "Rejected"]
    one = models.Event.from_dict({"tenantId": tenant, "stream": "calls", "quantity": "x"})
    assert call("record_events", gives="Answer", body=one, idempotency_key="k").rejected == 1
    cloud = {"specversion": "1.0", "id": "1", "source": "/s", "type": "calls", "tenantid": tenant, "data": 5}
    assert call("record_events", gives="Answer", body=models.CloudEvent.from_dict(cloud)).accepted == 1
    stack.until_caught_up()

    page = call("list_events", gives="EventPage", tenant_id=tenant, limit=2, cursor="")
    assert [event.data for event in page.items] == [{"a": [1, None]}] * 2
    rest = call("list_events", gives="EventPage", tenant_id=tenant, cursor=page.next_)
    assert (rest.items[0].data, rest.next_) == (5, None)
    assert len(call("list_causality", tenant, gives="CausalityPage", tenant_id=tenant).items) == 2

    of_customer = {"metric": "calls", "customer_ref": "c", "tenant_id": tenant}
    usage = call("get_usage", gives="Usage", **of_customer)
    assert [item.value for item in usage.items] == ["1.5", "1.5"]
    assert call("explain_counter", gives="Explanation", period=datetime(2026, 1, 1, tzinfo=UTC), **of_customer).items
    for name, given in (
        ("list_counters", of_customer), ("list_adjustments", of_customer), ("list_late_rows", {"tenant_id": tenant}),
        ("list_error_rows", {"tenant_id": tenant, "code": "invalid_event_time"}),
    ):  # fmt: skip
        call(name, gives="RowPage", **given)
    where = json.dumps({"calls": {"_gte": 1}})
    call("list_rows", "calls_10s", gives="RowPage", where=where, tenant_id=tenant)

    trigger = {"name": tenant, "tenantId": tenant, "table": "counters", "match": {}, "webhook": "http://127.0.0.1:9/"}
    told = call("create_trigger", gives="MadeTrigger", status=201, body=models.NewTrigger.from_dict(trigger))
    assert told.secrets
    assert call("get_trigger", tenant, gives="Trigger").table == "counters"
    assert call("list_triggers", gives="TriggerPage", tenant_id=tenant).items[0].name == tenant
    call("update_trigger", tenant, gives="Trigger", body=models.TriggerPatch.from_dict({"enabled": True}))
    call("record_events", gives="Answer", body=models.Event.from_dict(events[0] | {"customerRef": "d"}))
    until(lambda: call("list_deliveries", tenant, gives="DeliveryPage").items, "something was sent", 60)
    (sent,) = call("list_deliveries", tenant, gives="DeliveryPage").items
    assert call("get_delivery", tenant, sent.event_id, gives="Attempts").event_id == sent.event_id
    call("redeliver", tenant, gives="Redelivered", body=models.Redelivery.from_dict({"eventIds": []}))
    call("redeliver", tenant, gives="Redelivered")
    call("delete_trigger", tenant, gives="NoneType", status=204)

    close = models.CloseRequest.from_dict({"through": "2026-03-01", "metric": "calls", "tenantId": tenant})
    assert call("close_periods", gives="CloseAnswer", body=close).ingress_sequence
    stack.until_caught_up()
    assert call("list_periods", gives="Periods", metric="calls", tenant_id=tenant).items
    assert len(call("list_statements", gives="StatementPage", tenant_id=tenant, cursor="").items) == 3
    everyone = call("get_usage", gives="UsagePage", metric="calls", tenant_id=tenant, limit=2)
    assert (len(everyone.items), everyone.next_ is None) == (2, False)

    query = "query ($t: String) { counters(where: {tenant_id: {_eq: $t}}) { value } }"
    found = call("get_graphql", gives="GraphQLAnswer", query=query, variables=json.dumps({"t": tenant}))
    asked = models.GraphQLRequest.from_dict({"query": query, "variables": {"t": tenant}})
    posted = call("post_graphql", gives="GraphQLAnswer", body=asked)
    assert found.to_dict() == posted.to_dict()
    assert len(posted.to_dict()["data"]["counters"]) == 3

    tried = call(
        "try_event", gives="Tried", body=models.TryRequest.from_dict({"event": {**events[0], "quantity": "x"}})
    )
    assert tried.error.code == "invalid_quantity"
    batch = models.Event.from_dict({**events[0], "customerRef": "e", "batchId": tenant})
    call("record_events", gives="Answer", body=batch)
    stack.until_caught_up()
    assert [found.events for found in call("list_batches", gives="Batches", tenant_id=tenant, cursor="").items] == [1]
    preview = call("preview_revert", gives="RevertPreview", batch_id=tenant, tenant_id=tenant)
    assert [(counter.total, counter.total_after) for counter in preview.counters] == [("1.5", "0")]
    revert = models.RevertRequest.from_dict({"batchId": tenant, "tenantId": tenant})
    assert call("revert_batch", gives="RevertAnswer", body=revert).voided == 1

    health = call("get_event_health", gives="EventHealth", tenant_id=tenant)
    assert {reader.name for reader in health.readers} == {"fold", "triggers", "kafka"}
    assert {window.window for window in health.windows} == {"calls_10s"}
    call("get_activity", gives="Activity", tenant_id=tenant)
    assert "calls_10s" in call("get_definitions", gives="DefinitionsInForce").windows.to_dict()
    other = models.DiffRequest.from_dict({"definitions": '[meters.calls]\naggregation = "max"\n'})
    assert call("compare_meters", gives="MeterComparison", status=202, body=other).state == "running"
    call("get_meter_comparison", gives="MeterComparison")
    call("stop_meter_comparison", gives="MeterComparison")
    call("start_verification", gives="Verification", status=202)
    call("get_verification", gives="Verification")
    call("stop_verification", gives="Verification")
    assert "tidelock_events_total" in call("get_metrics", gives="str")
    call("get_readiness", gives="Health")
    call("get_liveness", gives="Alive")


def test_an_error_is_understood_too(stack: Stack, generated: Generated) -> None:
    with generated.caller(stack.url) as call:
        assert call("list_rows", "nothing", gives="ErrorBody", status=404).error.code == "not_found"
        wrong = call("list_counters", gives="ErrorBody", status=400, cursor="x")
    assert (wrong.error.code, wrong.error.field) == ("invalid_request", "cursor")
