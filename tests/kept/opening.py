"""Opens the kept ledger, which commit 3d84d06 wrote; `make.py` says how.

The fixture `kept` is the test's own copy, not migrated yet. Beside it:

    settings(url, data)   the settings it ran with
    definitions(file)     the definitions in `first.toml` or `tidelock.toml`
    expected()            what that commit answered about it
    difference(...)       the first value that differs; new members are allowed
"""

from __future__ import annotations

import json
import lzma
import subprocess
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

from tidelock.postgres.embedded import find_binaries
from tidelock.settings import Settings, load

HERE = Path(__file__).parent
DATA = [HERE / name for name in ("ledger.sql.xz", "expected.json.xz", "anchor.jsonl", "first.toml", "tidelock.toml")]
ANCHOR = HERE / "anchor.jsonl"
#: what its calculated columns compute, by their texts, for the reference model
FORMULAS = {
    "price * quantity": lambda row: _product(row["price"], row["quantity"]),
    "concat(symbol, '!')": lambda row: None if row["symbol"] is None else row["symbol"] + "!",
}


@cache
def expected() -> Mapping[str, Any]:
    """Questions and answers, and the texts of its API keys, of which the ledger has only hashes."""
    found: Mapping[str, Any] = json.loads(lzma.decompress((HERE / "expected.json.xz").read_bytes()))
    return found


def definitions(name: str) -> dict[str, dict[str, Any]]:
    """Those of a settings file, with an explicit lateness in each meter."""
    toml = tomllib.loads((HERE / name).read_text())
    lateness = toml["meters"].pop("lateness")
    meters = {meter: {"lateness": lateness, **said} for meter, said in toml["meters"].items()}
    return {"streams": toml["streams"], "meters": meters, "windows": toml["windows"]}


def restore(url: str) -> None:
    """Restore the dump into an empty database: schema, applied migrations and rows."""
    command = [str(find_binaries(None) / "psql"), "--quiet", "--no-psqlrc", "--set=ON_ERROR_STOP=1", f"--dbname={url}"]
    text = lzma.decompress((HERE / "ledger.sql.xz").read_bytes())
    done = subprocess.run(command, input=text, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def settings(url: str, data: Path) -> Settings:
    """The settings it ran with, for this database."""
    read = load(HERE / "tidelock.toml", {}, {})
    return replace(read, database_url=url, data=data, port=0)


def difference(then: Any, now: Any, place: str = "") -> str | None:
    """The first value that differs; None: all are the same.

    Objects may have new members, which later versions add. Lists must have the same length.
    """
    if isinstance(then, dict) and isinstance(now, dict):
        inner = ((f"{place}.{name}", value, now.get(name, "nothing")) for name, value in then.items())
    elif isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        inner = ((f"{place}[{n}]", *pair) for n, pair in enumerate(zip(then, now, strict=True)))
    else:
        return None if then == now else f"{place}: was {_short(then)}, is {_short(now)}"
    return next((found for at, was, is_ in inner if (found := difference(was, is_, at))), None)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    rows = f"{len(value)} rows: " if isinstance(value, list) else ""
    return rows + (text if len(text) <= 400 else f"{text[:400]} ...")


def _product(price: Decimal | None, quantity: int | None) -> Decimal | None:
    return None if price is None or quantity is None else price * quantity
