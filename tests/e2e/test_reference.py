"""Pages and files that speak of a running server say what it says itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import httpx
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import Databases
from tests.faults.servers import ROOT
from tests.serving import Start
from tidelock.reference.api import api_page

GRAFANA = ROOT / "docs" / "grafana"
METRIC = re.compile(r"\b(?:tidelock|process)_[a-z_]+")
SUFFIXES = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}


def queries() -> Iterator[str]:
    """Everything that the dashboard and the alerts ask Prometheus."""
    board = json.loads((GRAFANA / "tidelock.json").read_text())
    yield from (each["query"]["query"] for each in board["templating"]["list"] if each["type"] == "query")
    for panel in board["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    for group in yaml.safe_load((GRAFANA / "alerts.yaml").read_text())["groups"]:
        yield from (rule["expr"] for rule in group["rules"])


def metrics(text: str) -> set[str]:
    """Names by which the families of a scrape can be asked for."""
    families = text_string_to_metric_families(text)
    return {family.name + suffix for family in families for suffix in SUFFIXES.get(family.type, [""])}


async def test_dashboard_alerts_and_api_page_speak_of_what_a_server_has(start: Start, databases: Databases) -> None:
    with databases() as sequences:
        async with (
            start(event_sequence_database_url=sequences.url) as server,
            httpx.AsyncClient(base_url=server.url) as client,
        ):
            known = metrics((await client.get("/metrics")).text)
            document = (await client.get("/openapi.json")).json()
    asked = {name for query in queries() for name in METRIC.findall(query)}
    assert len(asked) > 20
    assert asked <= known
    assert (ROOT / "docs" / "api.md").read_text() == api_page(document), "run `make docs`"


def test_the_dashboard_is_one_that_grafana_can_lay_out() -> None:
    board = json.loads((GRAFANA / "tidelock.json").read_text())
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        assert panel["type"] == "row" or panel["targets"]
