"""What docs/clickhouse.md shows works: its table and its materialised view."""

import re
from decimal import Decimal
from pathlib import Path

from tests.sinks.stores import TestClickHouse, fill, loading
from tidelock.postgres.database import Database
from tidelock.spark.runtime import Spark

PAGE = Path(__file__).parent.parent.parent / "docs" / "clickhouse.md"


def shown(beginning: str) -> str:
    return next(
        text for text in re.findall(r"^```text\n(.*?)^```$", PAGE.read_text(), re.S | re.M) if beginning in text
    )


async def test_the_materialised_view_sees_each_event_once(spark: Spark, database: Database, tmp_path: Path) -> None:
    store = TestClickHouse(tmp_path / "clickhouse")
    with loading(spark, database, store) as load:
        store._command(shown("MATERIALIZED VIEW"))
        await fill(database)
        while load.step(5):
            pass
    with store.client() as client:
        made = str(client.command("SHOW CREATE TABLE events"))
        rows = client.query(
            "SELECT stream, sum(events), sum(quantity) FROM usage_by_hour GROUP BY stream ORDER BY stream"
        ).result_rows
    assert "ENGINE = MergeTree" in made
    assert "ORDER BY (ingress_sequence, kafka_partition, kafka_offset)" in made
    assert [tuple(row) for row in rows] == [("calls", 1, Decimal("-1.5")), ("s", 13, Decimal(48))]
