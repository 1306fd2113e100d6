"""Whether the tests notice a fault: one line of the product is changed, and the tests that run that line must fail.

    make coverage                            # which test runs which line
    python -m tests.mutants --seed 1 --count 30

Lines are picked at random among those that some test runs. A fault is one small change of an expression or statement on
that line. The tests that ran the line are run until one fails, those that need only Postgres first; a fault that none
of them notices is printed as missed, and one whose tests took too long as undecided: that counts for nothing.
Lines that only processes of their own run are tried with the files of tests that are named as their package or module.
"""

from __future__ import annotations

import argparse
import ast
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from coverage import CoverageData

ROOT = Path(__file__).parent.parent
PACKAGES = ("fold", "ledger", "live", "triggers")
#: words in the names of files of tests, by package: what is tried for a line that no test runs in its own process
PROCESSES = {
    "fold": {"fold", "windows", "drain", "java", "session"},
    "ledger": {"cli", "import", "backup", "sequence", "kills", "writers", "lost", "dropped"},
    "live": {"live", "slow", "foreign", "graphql", "hostile"},
    "triggers": {"trigger", "triggers", "webhooks", "delivery"},
}
#: pytest's: all passed, none was selected
_PASSED, _NONE = 0, 5
#: tests of one command; a line has at most this long to be noticed
_TESTS_AT_ONCE, _LIMIT_S = 200, 1_800
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


def main() -> int:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--seed", type=int, default=random.randrange(10**6))
    given.add_argument("--count", type=int, default=30)
    asked = given.parse_args()
    print(f"seed {asked.seed}", flush=True)
    chance = random.Random(asked.seed)
    data = CoverageData(str(ROOT / ".coverage"))
    data.read()
    found: dict[str, list[Fault]] = {"caught": [], "MISSED": [], "undecided": []}
    for fault in drawn(data, chance, asked.count):
        tests = tests_of(data, fault)
        started = time.monotonic()
        word = verdict(fault, tests)
        found[word].append(fault)
        print(f"{word} in {time.monotonic() - started:.0f} s, of {len(tests)} tests or files: {fault}", flush=True)
    caught, missed, undecided = map(len, found.values())
    print(f"{caught} of {caught + missed} caught, {undecided} undecided")
    return 1 if missed or undecided else 0


def drawn(data: CoverageData, chance: random.Random, count: int) -> Iterator[Fault]:
    """Faults on lines that were run, each file as likely as it has such lines."""
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


def tests_of(data: CoverageData, fault: Fault) -> Sequence[str]:
    """Every test that ran the line, the quick ones first; else files of tests that start what runs it."""
    contexts = data.contexts_by_lineno(str(fault.path)).get(fault.line, [])
    named = sorted((context for context in contexts if "::" in context), key=lambda name: (cost(name), name))
    if named:
        return named
    words = {fault.path.stem, *PROCESSES[fault.path.relative_to(ROOT / "tidelock").parts[0]]}
    files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py"))
    return sorted((file for file in files if words & set(Path(file).stem.split("_"))), key=cost)


def cost(test: str) -> int:
    """What a test has to start first: nothing but Postgres, a server, Spark and the rest."""
    places = (("tests/unit/", "tests/contract/"), ("tests/live/", "tests/triggers/"), ("tests/e2e/", "tests/client/"))
    return next((rank for rank, starts in enumerate(places) if test.startswith(starts)), len(places))


def verdict(fault: Fault, tests: Sequence[str]) -> str:
    """Whatever ends a run other than that all passed is noticed: a module that cannot be imported fails no test."""
    before, deadline = fault.path.read_text(), time.monotonic() + _LIMIT_S
    fault.path.write_text(fault.text)
    try:
        # Some at a time: a command has only so much room for names, and most faults are noticed by the first.
        for first in range(0, len(tests), _TESTS_AT_ONCE):
            chosen = tests[first : first + _TESTS_AT_ONCE]
            command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "2", "-m", "not soak", *chosen]
            left_s = max(1.0, deadline - time.monotonic())
            ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=left_s, check=False)
            if ran.returncode not in (_PASSED, _NONE):
                return "caught"
    except subprocess.TimeoutExpired:
        return "undecided"
    finally:
        fault.path.write_text(before)
    return "MISSED"


if __name__ == "__main__":
    sys.exit(main())
