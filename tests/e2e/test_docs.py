"""Docs are code: every snippet of README and docs runs, in the order it is written."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

import pytest
from graphql import parse, validate

from tests.faults.processes import until
from tests.faults.servers import ROOT, Server, running
from tests.live.javascript import clients, has_javascript
from tidelock.definitions import parse_definitions
from tidelock.fold.tables import tables_of
from tidelock.live.schema import make_schema
from tidelock.settings import load

#: the page about keys last: it makes one, and from then on every request needs one
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md"), key=lambda page: (page.name == "security.md", page)),
    *sorted((ROOT / "bench").rglob("*.md")),
    ROOT / "CONTRIBUTING.md",
]
#: pages whose snippets need what the page declares
DECLARING = ("README.md", "event-time.md", "reading.md", "subscriptions.md")
#: how long, and what curl says then
FOLLOWED_S, CURL_TIMEOUT = 3, 28
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
INTERPRETERS = {
    "sh": ["sh", "-eu", "-c"],
    "python": [sys.executable, "-W", "error", "-c"],
    "js": ["node", "--input-type=module", "-e"],
}
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def snippets(*kinds: str) -> list[tuple[str, str, str]]:
    """Page, kind and text of every snippet of these kinds."""
    return [
        (page.name, kind, text) for page in PAGES for kind, text in FENCE.findall(page.read_text()) if kind in kinds
    ]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with what these pages declare."""
    here = tmp_path_factory.mktemp("docs")
    config = here / "tidelock.toml"
    config.write_text("\n".join(text for page, _, text in snippets("toml") if page in DECLARING))
    with running(here / "data", config) as started:
        yield started


@pytest.mark.timeout(1800)
def test_every_snippet_of_a_language_runs_as_written(server: Server, jars: Path, tmp_path: Path) -> None:
    shutil.copytree(jars / "jars", server.data / "jars", dirs_exist_ok=True)
    here = tmp_path / ".venv" / "bin"
    here.mkdir(parents=True)
    command = here / "tidelock"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m tidelock "$@" --data {server.data}\n')
    command.chmod(0o755)
    found = snippets("sh", "python", "js")
    assert found
    for page, kind, text in found:
        if text.startswith("make ") or (kind == "js" and not has_javascript()):
            continue
        if page == "README.md":
            # As for one who reads on before going on.
            until(lambda: folded(server), "what was sent is folded", 120)
        script = text.replace("127.0.0.1:8080", server.url.removeprefix("http://"))
        script = script.replace("curl -s ", "curl -sS --fail-with-body ")
        # What follows for ever is followed for some seconds.
        script = script.replace("curl -sN ", f"curl -sSN --fail-with-body --max-time {FOLLOWED_S} ")
        ran = subprocess.run(
            [*INTERPRETERS[kind], script], cwd=clients(tmp_path), capture_output=True, text=True, timeout=400,
            env=os.environ | {"PYTHONPATH": str(ROOT), "TIDELOCK_DATA": str(server.data)}, check=False,
        )  # fmt: skip
        expected = CURL_TIMEOUT if "curl -sN " in text else 0
        assert ran.returncode == expected, f"{page}:\n{text}\n{ran.stdout}\n{ran.stderr}"


def folded(server: Server) -> bool:
    with suppress(OSError), urlopen(f"{server.url}/readyz", timeout=10) as answer:
        return [reader["lagSequences"] for reader in json.load(answer)["readers"] if reader["name"] == "fold"] == [0]
    return False


def test_every_graphql_snippet_is_valid() -> None:
    declared = "\n".join(text for page, _, text in snippets("toml") if page in DECLARING)
    schema = make_schema(tables_of(parse_definitions(tomllib.loads(declared))).values())
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
    assert set((ROOT / "docs").rglob("*.md")) - {index} <= listed


@pytest.mark.parametrize("page", [*PAGES, ROOT / "ARCHITECTURE.md", ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
