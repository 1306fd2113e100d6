"""Style is checked by a test, not by argument: import direction, cycles, file length, who imports which vendor."""

import ast
import re
import statistics
import subprocess
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tidelock.postgres.queries import load

pytestmark = pytest.mark.check

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "tidelock"
MODULES = sorted(PACKAGE.rglob("*.py"))
#: data flows this way; a stage never imports a later one
STAGES = [
    "where", "definitions", "tables", "settings", "arrow", "postgres", "ingest", "ledger", "spark", "eventtimes",
    "changes", "fold", "views", "triggers", "mirror", "sinks", "http", "usage", "graphql", "sources", "api", "console",
]  # fmt: skip
#: above every stage, in this order: what opens them, what people type, what is run with it
STAGES += ["children", "app", "cli", "demo"]
TOP = {"client", "reference", "__main__"}
#: pages for one and for all, named like their addresses; what delivers; the frame of pages, and frames of Spark
ONE_AND_ALL = {"event", "delivery", "frame"}
#: what the API answers and what the client makes of it: one thing, and the client needs nothing of the server's
ON_BOTH_SIDES = {"Corrections", "ExplainedEvent", "Explanation", "Part", "Usage"}
#: arguments that a reader can tell apart by their place
ARGUMENTS_MAX = 5
#: functions of others that take as many as there are: formats, packed structs, strategies, words of a command
ANY_NUMBER = {"format", "pack", "_event_numbers", "_identity", "builds", "tuples", "given", "create_subprocess_exec"}
#: rows made for every event that comes in or is read, with a name a line: by name they cost ten times as much, 2 us
MADE_PER_EVENT = {"Event", "Recorded"}
#: a module is a chapter
LINES_MAX = 600
#: a vendor is imported where its noun lives, and its errors are translated there
VENDORS = {
    "psycopg": {
        "postgres",
        "ledger",
        "spark",
        "fold",
        "changes",
        "views",
        "triggers",
        "mirror",
        "sinks",
        "usage",
        "graphql",
        "sources",
        "api",
        "app",
        "cli",
    },
    "fastapi": {"http", "api", "console"},
    "starlette": {"http", "graphql", "api", "console"},
    "nicegui": {"console"},
    "uvicorn": {"http"},
    "typer": {"cli", "reference"},
    "rich": {"cli", "demo"},
    "prometheus_client": {"api", "http"},
    "pyarrow": {"arrow", "fold", "changes", "views", "sinks", "spark", "sources"},
    "adbc_driver_postgresql": {"fold"},
    "pyspark": {"eventtimes", "fold", "sinks", "spark"},
    "py4j": {"fold", "sinks", "spark"},
    "graphql": {"graphql"},
    "zstandard": {"ingest", "sources"},
    "aiohttp": {"triggers", "demo"},
    "yarl": {"triggers"},
    "confluent_kafka": {"mirror"},
    "clickhouse_connect": {"sinks"},
}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMED = {module_name(path): path for path in MODULES}
FILES = [*MODULES, *(ROOT / "tests").rglob("*.py"), *(ROOT / "bench").rglob("*.py")]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def nodes(path: Path) -> list[ast.AST]:
    """All of a file, walked through once: many tests ask."""
    return list(ast.walk(parsed(path)))


def nothing_found(findings: list[str]) -> None:
    """Every finding at once, so that one run shows all there is to mend."""
    assert not findings, "\n" + "\n".join(findings)


def imports(path: Path, *, at_top_only: bool = False) -> Iterator[str]:
    for node in parsed(path).body if at_top_only else nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level or node.module is None:
                # A finding of a test of its own.
                continue
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_no_import_is_relative() -> None:
    findings = []
    for path in MODULES:
        relative = [node for node in nodes(path) if isinstance(node, ast.ImportFrom) and node.level]
        findings += [f"{path.relative_to(ROOT)}:{node.lineno} is a relative import" for node in relative]
    nothing_found(findings)


def place(name: str) -> str:
    """The stage or the top-level module a dotted name lies in."""
    return name.split(".")[1] if "." in name else ""


def rank(name: str) -> int:
    where = place(name)
    if where in STAGES:
        return 1 + STAGES.index(where)
    return 1 + len(STAGES) if where in TOP else 0


def test_no_stage_imports_a_later_one() -> None:
    findings = []
    for own, path in NAMED.items():
        later = [name for name in imports(path) if name.startswith("tidelock.") and rank(name) > rank(own)]
        findings += [f"{own} imports {name}" for name in later]
    nothing_found(findings)


def test_no_module_imports_itself_through_others() -> None:
    known = {module_name(path) for path in MODULES}
    graph = {module_name(path): {n for n in imports(path, at_top_only=True) if n in known} for path in MODULES}
    done: set[str] = set()
    findings: list[str] = []

    def visit(name: str, trail: tuple[str, ...]) -> None:
        if name in trail:
            findings.append(f"a cycle: {' -> '.join((*trail[trail.index(name) :], name))}")
        elif name not in done:
            for following in sorted(graph[name] - {name}):
                visit(following, (*trail, name))
            done.add(name)

    for name in sorted(graph):
        visit(name, ())
    nothing_found(findings)


def test_no_file_is_longer_than_a_chapter() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in FILES}
    ours = [lengths[str(path.relative_to(ROOT))] for path in MODULES]
    print(f"{len(ours)} modules, median {statistics.median(ours):.0f} lines, longest {max(ours)}")
    nothing_found([f"{name} has {lines} lines" for name, lines in lengths.items() if lines > LINES_MAX])


def test_a_vendor_is_imported_only_where_it_belongs() -> None:
    findings = []
    for own, path in NAMED.items():
        here = place(own)
        vendors = {name.split(".")[0] for name in imports(path)}
        findings += [f"{own} imports {vendor}" for vendor in vendors if here not in VENDORS.get(vendor, {here})]
    nothing_found(findings)


def test_every_module_says_what_it_is_for() -> None:
    nothing_found([f"{own} has no docstring" for own, path in NAMED.items() if not ast.get_docstring(parsed(path))])


def test_modules_are_nouns_of_the_field() -> None:
    vague = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "base"}
    nothing_found([f"{own} says nothing" for own, path in NAMED.items() if path.stem in vague])


def test_no_two_modules_differ_by_an_ending() -> None:
    stems = {path.stem for path in MODULES}
    pairs = [(stem, stem.removesuffix("y") + "ies" if stem.endswith("y") else f"{stem}s") for stem in stems]
    nothing_found([f"{one} and {many}" for one, many in pairs if many in stems and one not in ONE_AND_ALL])


def test_a_class_name_means_one_thing() -> None:
    found: dict[str, list[str]] = {}
    for own, path in NAMED.items():
        for node in nodes(path):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(own)
    shared = {name: owners for name, owners in found.items() if len(owners) > 1 and name not in ON_BOTH_SIDES}
    nothing_found([f"{name} is a class of {' and of '.join(owners)}" for name, owners in shared.items()])


def test_a_call_gives_at_most_five_arguments_by_place() -> None:
    takes_any = set(ANY_NUMBER)
    for path in FILES:
        functions = [each for each in nodes(path) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
        takes_any |= {each.name for each in functions if each.args.vararg}
    findings = []
    for path in FILES:
        for call in (each for each in nodes(path) if isinstance(each, ast.Call)):
            name = called(call)
            many = len([each for each in call.args if not isinstance(each, ast.Starred)]) > ARGUMENTS_MAX
            if many and name not in takes_any and name not in MADE_PER_EVENT:
                findings.append(
                    f"{path.relative_to(ROOT)}:{call.lineno} gives {name} more than {ARGUMENTS_MAX} by place"
                )
    nothing_found(findings)


def called(call: ast.Call) -> str:
    function = call.func
    if isinstance(function, ast.Name):
        return function.id
    return function.attr if isinstance(function, ast.Attribute) else ""


def test_nothing_points_at_anything_outside_the_project() -> None:
    command = ["git", "ls-files", "-co", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    forbidden = re.compile(r"\.\./" + r"shared|/" + r"work/")
    texts = {".py", ".md", ".toml", ".sql", ".yml", ".yaml", ".sh", ""}
    files = [ROOT / name for name in listed.stdout.splitlines() if Path(name).suffix in texts]
    found = [path for path in files if path.is_file() and forbidden.search(path.read_text(errors="ignore"))]
    nothing_found([f"{path.relative_to(ROOT)} names a path outside the project" for path in found])


class Loads(ast.NodeVisitor):
    """Which queries a file takes from which SQL file, where all of it is literal."""

    def __init__(self) -> None:
        #: a name of the module -> the SQL file it stands for
        self.named: dict[str, tuple[str, str]] = {}
        self.files: list[tuple[int, tuple[str, str]]] = []
        self.taken: list[tuple[int, tuple[str, str], str]] = []

    def visit_Assign(self, node: ast.Assign) -> None:
        if (loaded := sql_file(node.value)) and isinstance(node.targets[0], ast.Name):
            self.named[node.targets[0].id] = loaded
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if loaded := sql_file(node):
            self.files.append((node.lineno, loaded))
        # queries.text("name")
        if isinstance(node.func, ast.Attribute) and node.func.attr == "text" and node.args:
            self.take(node.func.value, node.args[0])
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self.take(node.value, node.slice)
        self.generic_visit(node)

    def take(self, queries: ast.expr, name: ast.expr) -> None:
        loaded = self.named.get(queries.id) if isinstance(queries, ast.Name) else sql_file(queries)
        if loaded and isinstance(name, ast.Constant) and isinstance(name.value, str):
            self.taken.append((name.lineno, loaded, name.value))


def sql_file(node: ast.expr) -> tuple[str, str] | None:
    """`load("tidelock.room", "sql/file.sql")`, as its two texts."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "load"):
        return None
    texts = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    return (texts[0], texts[1]) if len(texts) == len(node.args) == 2 else None


def test_every_query_that_is_loaded_is_in_its_file() -> None:
    findings = []
    for path in FILES:
        loads = Loads()
        loads.visit(parsed(path))
        place = path.relative_to(ROOT)
        there = {loaded: ROOT.joinpath(*loaded[0].split("."), loaded[1]) for _, loaded in loads.files}
        findings += [f"{place}:{line} loads {there[at]}" for line, at in loads.files if not there[at].is_file()]
        findings += [
            f"{place}:{line} asks {at[1]} for {name}"
            for line, at, name in loads.taken
            if at in there and there[at].is_file() and name not in load(*at)
        ]
    nothing_found(findings)


def test_every_long_proof_has_a_line_in_the_table_of_proofs() -> None:
    told = (ROOT / "docs" / "proofs.md").read_text()
    soaks = [path for path in FILES if path.is_relative_to(ROOT / "tests") and "@pytest.mark.soak" in path.read_text()]
    missing = [path.name for path in soaks if path != Path(__file__) and path.name not in told]
    nothing_found([f"docs/proofs.md does not name {name}" for name in missing])


#: messages of others that docs/troubleshooting.md quotes: Postgres and the system say these
FOREIGN = {
    "Permission denied",
    "has wrong ownership",
    "has invalid permissions",
    "could not map anonymous shared memory",
}
#: habits of translated prose, and what to write
HABITS = {
    r"\banew\b": "again, rebuilt",
    r"\bof (now|then)\b": "current, as of that sequence",
    r"\bwhoever\b": "name who it is",
    r"\bso many\b": "this many, a number of",
    r"\bis at it\b": "is running",
    r"\bfor the eye\b": "say what it is",
    r"\bstands\b(?! by| for| out)": "is",
    r"\bbehind (row|sequence|this sequence|its cursor)\b": "after",
    r"\bthe newest so\b|\bthe newest first\b": "newest first",
    r"\bmend(s|ed)\b": "fix, repair",
}
#: where such words are meant: "so many ... that"
MEANT = {"tidelock/http/listener.py": "so many answers unread that"}


@cache
def messages() -> str:
    """Every text in the package's code, with a gap for each inserted value."""
    texts = []
    for path in MODULES:
        for node in nodes(path):
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
                texts.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return " ".join("\n".join(texts).split())


def test_troubleshooting_quotes_messages_that_exist() -> None:
    unknown = []
    for line in (ROOT / "docs" / "troubleshooting.md").read_text().splitlines():
        first = line.split(" | ")[0]
        for quoted in re.findall(r"`([^`]+)`", first) if line.startswith("| ") else ():
            parts = [part.strip() for part in quoted.split("...")]
            words = [part for part in parts if " " in part and not part.startswith('"')]
            unknown += [part for part in words if part not in messages() and part not in FOREIGN]
    assert not unknown


def prose() -> Iterator[tuple[str, int, str]]:
    """Lines that people read: pages, comments, docstrings and texts, but no migrations, which never change."""
    for path in (*MODULES, *PACKAGE.rglob("*.sql"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")):
        name = str(path.relative_to(ROOT))
        if path.suffix == ".py":
            with path.open() as source:
                for token in tokenize.generate_tokens(source.readline):
                    if token.type in (tokenize.STRING, tokenize.COMMENT):
                        yield from (
                            (name, token.start[0] + i, line) for i, line in enumerate(token.string.splitlines())
                        )
        elif "postgres/migrations" not in name and path.name != "schema.sql":
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if path.suffix == ".md" or line.lstrip().startswith("--"):
                    yield name, number, line


def test_habits_of_translated_prose_stay_out() -> None:
    found = [
        f"{name}:{number}: {match[0]!r}; say {better}"
        for name, number, line in prose()
        for habit, better in HABITS.items()
        if (match := re.search(habit, line, re.IGNORECASE)) and MEANT.get(name, "\0") not in line
    ]
    assert not found, "\n".join(found)
