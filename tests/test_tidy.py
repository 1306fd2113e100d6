"""Style is checked by a test, not by argument: import direction, cycles, file length, who imports which vendor."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "tidelock"
MODULES = sorted(PACKAGE.rglob("*.py"))
#: data flows this way; a stage never imports a later one
STAGES = ["ingest", "ledger", "fold", "changes", "live", "triggers", "mirror", "sinks", "ops", "console"]
#: above every stage
TOP = {"app", "cli", "client", "eventtimes", "reference", "spark", "__main__"}
LINES_MAX = 400
#: a vendor is imported where its noun lives, and its errors are translated there
VENDORS = {
    "psycopg": {"ledger", "fold", "changes", "live", "triggers", "mirror", "sinks", "ops", "app"},
    "fastapi": {"ops", "console", "app"},
    "starlette": {"ops", "console", "app"},
    "nicegui": {"console"},
    "uvicorn": {"ops", "app"},
    "typer": {"ops", "cli", "reference"},
    "rich": {"ops", "cli"},
    "prometheus_client": {"ops", "app"},
    "pyarrow": {"fold", "changes", "live", "sinks", "spark", "ops"},
    "adbc_driver_postgresql": {"fold", "changes", "ops"},
    "pyspark": {"fold", "sinks", "spark"},
    "py4j": {"fold", "sinks", "spark"},
    "graphql": {"live", "ops"},
    "zstandard": {"ingest", "ops"},
    "aiohttp": {"triggers", "ops"},
    "yarl": {"triggers"},
    "confluent_kafka": {"mirror", "ops"},
    "duckdb": {"ops"},
    "clickhouse_connect": {"sinks"},
}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, *, at_top_only: bool = False) -> Iterator[str]:
    tree = ast.parse(path.read_text())
    nodes = tree.body if at_top_only else list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} uses a relative import"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def place(name: str) -> str:
    """The stage or the top-level module a dotted name lies in."""
    return name.split(".")[1] if "." in name else ""


def rank(name: str) -> int:
    where = place(name)
    if where in STAGES:
        return 1 + STAGES.index(where)
    return 1 + len(STAGES) if where in TOP else 0


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_no_stage_imports_a_later_one(path: Path) -> None:
    own = module_name(path)
    later = [name for name in imports(path) if name.startswith("tidelock.") and rank(name) > rank(own)]
    assert not later, f"{own} imports {later}"


def test_no_module_imports_itself_through_others() -> None:
    known = {module_name(path) for path in MODULES}
    graph = {module_name(path): {n for n in imports(path, at_top_only=True) if n in known} for path in MODULES}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, f"a cycle: {' -> '.join((*trail, name))}"
        if name not in done:
            for following in graph[name] - {name}:
                visit(following, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())


@pytest.mark.parametrize("path", [*MODULES, *(ROOT / "tests").rglob("*.py"), *(ROOT / "bench").rglob("*.py")], ids=str)
def test_no_file_is_longer_than_one_can_read_at_once(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LINES_MAX


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_a_vendor_is_imported_only_where_it_belongs(path: Path) -> None:
    own = place(module_name(path))
    for name in imports(path):
        vendor = name.split(".")[0]
        assert own in VENDORS.get(vendor, {own}), f"{module_name(path)} imports {vendor}"


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_every_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_modules_are_nouns_of_the_field(path: Path) -> None:
    assert path.stem not in {"utils", "util", "helpers", "helper", "common", "misc", "manager", "base"}


def test_nothing_points_at_what_stands_beside_the_project() -> None:
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    forbidden = re.compile(r"\.\./" + r"shared|/" + r"work/")
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if path.is_file() and path.suffix in {".py", ".md", ".toml", ".sql", ".yml", ".yaml", ".sh", ""}:
            assert not forbidden.search(path.read_text(errors="ignore")), f"{name} names a path outside the project"
