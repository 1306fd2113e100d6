"""English is checked where it can be: quoted messages exist, and habits of translated prose stay out."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.check

ROOT = Path(__file__).parent.parent
#: messages of others that the docs quote: Postgres and the system say these
FOREIGN = {
    "Permission denied",
    "has wrong ownership",
    "has invalid permissions",
    "could not map anonymous shared memory",
}


@cache
def messages() -> str:
    """Every text in the package's code, with a gap where a value is put in."""
    texts = []
    for path in sorted((ROOT / "tidelock").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
                texts.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return " ".join("\n".join(texts).split())


def test_the_messages_that_troubleshooting_quotes_are_those_there_are() -> None:
    unknown = []
    for line in (ROOT / "docs" / "troubleshooting.md").read_text().splitlines():
        first = line.split(" | ")[0]
        for quoted in re.findall(r"`([^`]+)`", first) if line.startswith("| ") else ():
            parts = [part.strip() for part in quoted.split("...")]
            words = [part for part in parts if " " in part and not part.startswith('"')]
            unknown += [part for part in words if part not in messages() and part not in FOREIGN]
    assert not unknown
