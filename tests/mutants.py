"""Whether the tests notice a fault: one line of the product is changed, and the tests that run that line must fail.

    make coverage                            # which test runs which line
    python -m tests.mutants --seed 1 --count 30 --minutes 40 --report mutants.md

Lines are picked at random among those that some test runs. A fault is one small change of an expression or statement on
that line, made in a copy of the project. The tests that ran the line are run until one fails: of each file one, those
that need only Postgres first, then all the others. A test that fails without the fault too has noticed nothing. A fault
that none of them notices is missed, and one whose tests took too long is undecided: that counts for nothing.
Lines that no test is known to run are tried with the files of tests that are named as their package or module.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from queue import SimpleQueue

from coverage import CoverageData

ROOT = Path(__file__).parent.parent
PACKAGES = ("fold", "changes", "ledger", "views", "graphql", "triggers")
#: words in the names of files of tests, by package: what is tried for a line that no test runs in its own process
PROCESSES = {
    "fold": {"fold", "windows", "drain", "java", "runtime"},
    "ledger": {"cli", "import", "backup", "sequence", "kills", "writers", "lost", "dropped"},
    "changes": {"fold", "live", "foreign"},
    "views": {"live", "slow", "foreign", "hostile"},
    "graphql": {"live", "slow", "foreign", "hostile", "ws"},
    "triggers": {"trigger", "triggers", "webhooks", "delivery"},
}
#: pytest's: all passed, some failed, none was selected
_PASSED, _FAILED, _NONE = 0, 1, 5
#: copies of the project, each with a fault of its own
_COPIES = 2
#: tests of one command; a command line has only so much room for names
_TESTS_AT_ONCE = 200
#: a fault that makes a test hang is noticed by then
_HANGS_S = 120
_FAILURE = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Mod: ast.Add,
}  # fmt: skip


@dataclass(frozen=True)
class Fault:
    path: Path
    line: int
    #: what stands there, and what is put there instead
    was: str
    now: str
    text: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.was}  ->  {self.now}"


@dataclass(frozen=True)
class Verdict:
    fault: Fault
    #: caught, MISSED or undecided
    word: str
    #: the test that noticed, or how many ran
    why: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.word} in {self.seconds:.0f} s: {self.fault}  ({self.why})"


def main() -> int:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--seed", type=int, default=random.randrange(10**6))
    given.add_argument("--count", type=int, default=30)
    given.add_argument("--minutes", type=float, default=40.0, help="what is not decided by then stays undecided")
    given.add_argument("--report", type=Path, help="a Markdown file to write the verdicts to")
    asked = given.parse_args()
    print(f"seed {asked.seed}", flush=True)
    data = CoverageData(str(ROOT / ".coverage"))
    data.read()
    faults = list(drawn(data, random.Random(asked.seed), asked.count))
    with tempfile.TemporaryDirectory(prefix="tidelock-mutants-") as place:
        # The embedded Postgres may run as another user, who has to come through here.
        Path(place).chmod(0o755)
        trial = Trial(data, Path(place), len(faults), time.monotonic() + 60 * asked.minutes)
        with ThreadPoolExecutor(_COPIES) as pool:
            verdicts = list(pool.map(trial.decide, faults))
    counted = {word: sum(each.word == word for each in verdicts) for word in ("caught", "MISSED", "undecided")}
    told = f"{counted['caught']} of {counted['caught'] + counted['MISSED']} caught, {counted['undecided']} undecided"
    print(told)
    if asked.report is not None:
        asked.report.write_text(reported(asked.seed, verdicts, told))
    return 0 if counted["caught"] == len(verdicts) else 1


def reported(seed: int, verdicts: Sequence[Verdict], told: str) -> str:
    cells = [
        (each.word, str(each.fault).replace("|", "\\|"), each.why, f"{each.seconds:.0f} s")
        for each in sorted(verdicts, key=lambda each: (each.word == "caught", str(each.fault)))
    ]
    rows = "".join(f"| {word} | `{fault}` | {why} | {seconds} |\n" for word, fault, why, seconds in cells)
    return f"Seed {seed}: {told}.\n\n| | fault | noticed by | in |\n|---|---|---|---|\n{rows}"


class Trial:
    """Tries faults, each in a copy that no other one uses meanwhile, until a moment at which all must be decided."""

    def __init__(self, data: CoverageData, place: Path, faults: int, deadline: float) -> None:
        self._data, self._deadline, self._faults_left = data, deadline, faults
        self._copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(_COPIES):
            self._copies.put(copied(place / f"{number}"))

    def decide(self, fault: Fault) -> Verdict:
        began = time.monotonic()
        # Most are noticed at once, which leaves the others twice their share and more.
        left_s = max(1.0, self._deadline - began)
        limit_s = min(left_s, 2 * _COPIES * left_s / max(1, self._faults_left))
        self._faults_left -= 1
        copy = self._copies.get()
        try:
            word, why = tried(copy, fault, tests_of(self._data, fault), began + limit_s)
        finally:
            self._copies.put(copy)
        found = Verdict(fault, word, why, time.monotonic() - began)
        print(found, flush=True)
        return found


def copied(place: Path) -> Path:
    """The project as it is, not only as it was committed, with what `make setup` has brought."""
    subprocess.run(["git", "clone", "--quiet", "--local", ROOT, place], check=True)
    listing = ["git", "ls-files", "-co", "--exclude-standard"]
    for name in subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines():
        if (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, place / name)
    for brought in (".venv", "tests/javascript/node_modules", ".pytest_cache/d/tidelock"):
        if (ROOT / brought).exists():
            (place / brought).parent.mkdir(parents=True, exist_ok=True)
            (place / brought).symlink_to(ROOT / brought)
    return place


def drawn(data: CoverageData, chance: random.Random, count: int) -> Iterator[Fault]:
    """Faults on lines that were run, each module as likely as it has such lines."""
    places = [
        (Path(name), line)
        for name in sorted(data.measured_files())
        if Path(name).is_relative_to(ROOT / "tidelock") and Path(name).parts[len(ROOT.parts) + 1] in PACKAGES
        for line in sorted(data.lines(name) or [])
    ]
    chance.shuffle(places)
    found = 0
    for path, line in places:
        if found == count:
            return
        if faults := faults_of(path, line):
            found += 1
            yield chance.choice(faults)


def faults_of(path: Path, line: int) -> list[Fault]:
    """Every fault that can be made on a line inside a function."""
    text = path.read_text()
    tree = ast.parse(text)
    inside = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    found: list[Fault] = []
    for function in inside:
        for node in ast.walk(function):
            if getattr(node, "lineno", None) != line or getattr(node, "end_lineno", None) != line:
                continue
            found += [replaced(path, text, node, changed) for changed in changes_of(node)]
    return [fault for fault in found if fault.was != fault.now]


def changes_of(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARISONS:
        yield ast.unparse(ast.Compare(node.left, [_COMPARISONS[type(node.ops[0])](), *node.ops[1:]], node.comparators))
    elif isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield ast.unparse(ast.BoolOp(other, node.values))
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        yield ast.unparse(ast.BinOp(node.left, _OPERATORS[type(node.op)](), node.right))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield ast.unparse(node.operand)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield str(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield str(node.value + 1)
    elif isinstance(node, ast.Return) and node.value is not None:
        yield "return None"
    elif isinstance(node, ast.Break) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await)):
        yield "pass"
    elif isinstance(node, ast.Continue):
        yield "break"


def replaced(path: Path, text: str, node: ast.AST, changed: str) -> Fault:
    lines = text.splitlines(keepends=True)
    number = node.lineno - 1  # type: ignore[attr-defined]
    # Columns are counted in bytes.
    line = lines[number].encode()
    begin, end = node.col_offset, node.end_col_offset  # type: ignore[attr-defined]
    was = line[begin:end].decode()
    new = changed if isinstance(node, ast.stmt) else f"({changed})"
    lines[number] = (line[:begin] + new.encode() + line[end:]).decode()
    return Fault(path, number + 1, was, changed, "".join(lines))


def tests_of(data: CoverageData, fault: Fault) -> list[list[str]]:
    """Every test that ran the line, the quick ones first: one of each file, then the others; else files of tests."""
    # What a process ran belongs to the test that started it.
    contexts = data.contexts_by_lineno(str(fault.path)).get(fault.line, [])
    named = {context.partition("|")[0] for context in contexts if "::" in context}
    by_file = [list(tests) for _, tests in groupby(sorted(named, key=lambda name: (cost(name), name)), file_of)]
    if by_file:
        return in_pieces([tests[0] for tests in by_file]) + in_pieces([test for tests in by_file for test in tests[1:]])
    words = {fault.path.stem, *PROCESSES[fault.path.relative_to(ROOT / "tidelock").parts[0]]}
    files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py"))
    return [sorted((file for file in files if words & set(Path(file).stem.split("_"))), key=cost)]


def in_pieces(tests: list[str]) -> list[list[str]]:
    return [tests[first : first + _TESTS_AT_ONCE] for first in range(0, len(tests), _TESTS_AT_ONCE)]


def file_of(test: str) -> str:
    return test.partition("::")[0]


def cost(test: str) -> int:
    """What a test has to start first: nothing but Postgres, a server, Spark and the rest."""
    rooms = (
        ("words", "model", "settings", "definitions", "where", "postgres", "ingest", "ledger", "changes"),
        ("fold/kernel", "views", "graphql", "triggers"), ("http", "api", "usage", "sources", "cli", "client", "e2e"),
        ("spark", "fold", "law", "kept"),
    )  # fmt: skip
    places = [tuple(f"tests/{room}/" for room in each) for each in rooms]
    return next((rank for rank, starts in enumerate(places) if test.startswith(starts)), len(places))


def tried(copy: Path, fault: Fault, pieces: Sequence[Sequence[str]], deadline: float) -> tuple[str, str]:
    changed = copy / fault.path.relative_to(ROOT)
    before, ran = changed.read_text(), 0
    for tests in pieces:
        changed.write_text(fault.text)
        try:
            code, failed = run(copy, tests, deadline)
        finally:
            changed.write_text(before)
        if code is None:
            return "undecided", f"out of time after {ran} tests or files"
        if code == _FAILED and failed and run(copy, failed, deadline)[0] != _PASSED:
            return "undecided", f"{failed[0]} fails without it too"
        if code not in (_PASSED, _NONE):
            # Whatever else ends a run is noticed as well: a module that cannot be imported fails no test.
            return "caught", failed[0] if failed else "no test could be run"
        ran += len(tests)
    return "MISSED", f"{ran} tests or files"


def run(copy: Path, tests: Sequence[str], deadline: float) -> tuple[int | None, list[str]]:
    """How it ended, None where it did not in time, and which tests failed: at most one."""
    words = ["-x", "-q", "-rfE", "-m", "not soak", f"--timeout={_HANGS_S}", *tests]
    running = subprocess.Popen(
        # Processes that tests start elsewhere find the copy, too.
        [sys.executable, "-m", "pytest", *words], cwd=copy, env=os.environ | {"PYTHONPATH": str(copy)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = running.communicate(timeout=max(1.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(running.pid, signal.SIGTERM)
            running.wait(30)
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.communicate()
        return None, []
    return running.returncode, _FAILURE.findall(output)


if __name__ == "__main__":
    sys.exit(main())
