"""Docs are code: every snippet of README and docs runs, in the order it is written."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from graphql import parse, validate

from tests.conftest import Databases
from tests.e2e.reading import Reader, reading, sharing
from tests.faults.servers import ROOT
from tests.javascript import has_javascript
from tests.serving import Threaded
from tests.stack import Stack, declared
from tidelock.definitions import parse_definitions
from tidelock.graphql.schema import make_schema
from tidelock.settings import load
from tidelock.spark.runtime import Spark
from tidelock.tables import tables_of

pytestmark = pytest.mark.stack
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "bench").rglob("*.md")),
    ROOT / "CONTRIBUTING.md",
]
KEYS = "security.md"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def snippets(*kinds: str) -> list[tuple[str, str, str]]:
    """Page, kind and text of every snippet of these kinds."""
    return [
        (page.name, kind, text) for page in PAGES for kind, text in FENCE.findall(page.read_text()) if kind in kinds
    ]


@pytest.mark.timeout(900)
def test_every_snippet_of_a_language_runs_as_written(stack: Stack, spark: Spark, tmp_path: Path) -> None:
    given = {"TIDELOCK_DATA": str(stack.data)}
    with reading(stack.url, given, tmp_path) as reader, sharing(spark, tmp_path):
        for page, kind, text in snippets("sh", "python", "js"):
            if page in ("README.md", "billing.md"):
                # As for one who reads on before going on.
                stack.until_caught_up()
            if page != KEYS:
                read(reader, page, kind, text)


def test_every_snippet_about_keys_runs_as_written(databases: Databases, threaded: Threaded, tmp_path: Path) -> None:
    """On a server of its own: once there is a key, required, for ever."""
    found = [(kind, text) for page, kind, text in snippets("sh", "python", "js") if page == KEYS]
    assert found
    with (
        databases() as database,
        threaded(database_url=database.url) as url,
        reading(url, {"TIDELOCK_DATABASE_URL": database.url}, tmp_path) as reader,
    ):
        for kind, text in found:
            read(reader, KEYS, kind, text)


def read(reader: Reader, page: str, kind: str, text: str) -> None:
    if text.startswith("make ") or (kind == "js" and not has_javascript()):
        return
    try:
        reader.run(kind, text)
    except Exception as error:
        raise AssertionError(f"{page}:\n{text}\n{error}") from error


def test_every_graphql_snippet_is_valid() -> None:
    schema = make_schema(tables_of(parse_definitions(tomllib.loads(declared()))).values())
    found = snippets("graphql")
    assert found
    for _, _, text in found:
        assert not validate(schema, parse(text)), text


def test_every_make_command_exists() -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = [line.split()[1] for _, _, text in snippets("sh") for line in text.splitlines() if line.startswith("make ")]
    assert named
    assert set(named) <= set(targets)


def test_every_json_snippet_is_json() -> None:
    for _, _, text in snippets("json"):
        json.loads(text)


def test_every_toml_snippet_is_a_configuration_that_works(tmp_path: Path) -> None:
    for _, _, text in snippets("toml"):
        path = tmp_path / "tidelock.toml"
        path.write_text(text)
        load(path, {}, {})
        parse_definitions(tomllib.loads(text))


def test_every_page_is_listed_where_one_looks_for_it() -> None:
    index = ROOT / "docs" / "README.md"
    listed = {(index.parent / target).resolve() for target in LINK.findall(index.read_text())}
    decisions = ROOT / "docs" / "decisions" / "README.md"
    listed |= {(decisions.parent / target).resolve() for target in LINK.findall(decisions.read_text())}
    assert set((ROOT / "docs").rglob("*.md")) - {index} <= listed


def test_every_link_leads_somewhere() -> None:
    decisions = (ROOT / "docs" / "decisions").glob("*.md")
    for page in {*PAGES, ROOT / "ARCHITECTURE.md", ROOT / "CHANGELOG.md", *decisions}:
        for target in LINK.findall(page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
