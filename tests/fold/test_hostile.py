"""Names and texts in definitions that want to be something else: SQL, formats, parameters. They stay texts."""

from __future__ import annotations

import asyncio
from ast import literal_eval
from contextlib import suppress
from typing import Any

import pytest

from tests.fold.folding import Folding
from tests.recording import record, sequencing
from tidelock.definitions import Stream, parse_definitions
from tidelock.errors import SettingsError
from tidelock.fold.latest import compile_calculations
from tidelock.postgres.database import Database
from tidelock.spark.runtime import Spark

HOSTILE = [
    "a'b", 'a"b', "a`b", "a\\b", "a\\'", "\\", "${env:HOME}", "$$", "%s%(x)s", "{0}", "a\nb", "a\x1bb", " ", "🙂",
    "'; DROP TABLE events; --", "'||version()||'", "') OR 1=1 --", "*/ x /*", ":name", "?",
]  # fmt: skip
DAY = "2026-01-31T12:00:00Z"


def meters() -> dict[str, Any]:
    """Of each text three: one is called so, reads a stream called so, and a member; one groups; one filters."""
    shared = {"aggregation": "sum", "period": "day"}
    found: dict[str, Any] = {}
    for number, text in enumerate(HOSTILE):
        found[text] = {**shared, "stream": text, "value": f"data.{text}"}
        found[f"group_{number}"] = {**shared, "stream": text, "group_by": [f"data.{text}", "customer_ref"]}
        found[f"where_{number}"] = {
            **shared,
            "stream": text,
            "where": {"customer_ref": {"_eq": text}, f"data.{text}": {"_in": ["2", "3"]}},
        }
    return found


def test_hostile_texts_in_definitions_and_events_are_nothing_but_texts(spark: Spark, database: Database) -> None:
    toml = {"meters": meters()}
    events = [
        {"tenantId": text, "stream": text, "customerRef": text, "ts": DAY, "quantity": "5", "data": {text: 3}}
        for text in HOSTILE
    ]

    async def fill() -> None:
        async with sequencing(database) as sequencer:
            for event in events:
                await record(sequencer, event, {**event, "customerRef": "other", "data": {text_of(event): 4}})

    asyncio.run(fill())
    with Folding(spark, database, toml) as folding:
        picture = folding.fold([(0, 2 * len(HOSTILE))])
    assert not [row for place, row in picture.rows.items() if place[0] == "error_rows"]
    # A picture has every value as the text of its representation.
    counters = {
        (literal_eval(row["metric"]), literal_eval(row["customer_ref"])): row["value"]
        for place, (_, row) in picture.rows.items()
        if place[0] == "counters"
    }
    for number, text in enumerate(HOSTILE):
        assert "3" in counters[text, text], repr(text)
        assert "4" in counters[text, "other"], repr(text)
        assert "5" in counters[f"where_{number}", text], repr(text)
        assert (f"where_{number}", "other") not in counters
    groups = [place for place in picture.rows if place[0] == "counter_groups"]
    assert len(groups) == 2 * len(HOSTILE)


def text_of(event: dict[str, Any]) -> str:
    return str(event["stream"])


@pytest.mark.parametrize(
    "formula",
    [
        "java_method('java.lang.System', 'getenv', 'PATH')", "reflect('java.lang.Runtime', 'getRuntime')",
        "input_file_name()", "current_user()", "version()", "current_timestamp()", "now()", "rand()", "uuid()",
        "secret('a', 'b')", "read_files('/etc/passwd')", "(SELECT 1)", "(SELECT max(ingress_sequence) FROM events)",
        "n; DROP TABLE events", "n -- comment", "n /* comment */", "'${env:HOME}' || n || {x}", "row.c0", "v",
        "transform(array(1), v -> v)", "n + :p", "?", "`n`; DROP", "CAST(n AS decimal(`²`))", "n::int", "@@version",
        "raise_error('x')", "try_reflect('java.lang.System', 'exit', 0)", "xpath('<a/>', 'a')",
        "repeat('x', 2000000000)",
    ],
)  # fmt: skip
def test_a_formula_that_reaches_beyond_its_row_is_refused_at_start(spark: Spark, formula: str) -> None:
    with pytest.raises(SettingsError, match="calculated"):
        compiled(spark, formula)


@pytest.mark.parametrize("formula", ["n" + " + n" * 2400, "n" + " = n" * 2400, "n" + " + n" * 200])
def test_a_formula_as_long_as_they_may_be_works_or_is_refused(spark: Spark, formula: str) -> None:
    with suppress(SettingsError):
        compiled(spark, formula)


def compiled(spark: Spark, formula: str) -> None:
    definitions = parse_definitions(
        {"streams": {"s": {"key": "n", "columns": {"n": "int"}, "calculated": {"calculated": formula}}}}
    )
    stream: Stream = definitions.streams["s"]
    compile_calculations(spark.session, stream, lambda name: "CAST(NULL AS INT)")
