"""Commands that prove the ledger: `verify`."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from tidelock.errors import Difference, Unreachable
from tidelock.ledger.queries import load
from tidelock.ops import terminal
from tidelock.ops.commands import folding
from tidelock.ops.commands.mirroring import check_kafka
from tidelock.ops.commands.session import Config, Data, DatabaseUrl, Json, found_ledger, read_settings, setting
from tidelock.settings import Settings

if TYPE_CHECKING:
    from tidelock.fold.redefine.recomputation import Recomputation
    from tidelock.ledger.database import Database
    from tidelock.ledger.findings import Check

app = typer.Typer()

#: called with the sequence that is reached and the one to reach
Progress = Callable[[int, int], None]
Proof = Callable[[Settings, "Database", Progress], "Check"]


@app.command(rich_help_panel="Look after")
def verify(
    context: typer.Context,
    anchor: Annotated[str | None, setting("anchor", "FILE")] = None,
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    tables: Annotated[
        bool, typer.Option("--tables/--no-tables", help="Fold the tables anew too, on Spark, once a fold has run.")
    ] = True,
    json: Json = False,
) -> None:
    """Prove that the ledger is what was recorded: nothing changed, missing, moved or cut off.

    Checks the chain over every column, numbering, order, each event's content and identity, the anchor file, and that
    the tables are what folding the ledger anew gives. What is set of Kafka, ClickHouse and a lake
    must hold the same events in the same order.

    Exits with 1 and names the first difference; with 3 where nothing differs, but something is away. Writers may go
    on meanwhile.

    [dim]tidelock verify --anchor /mnt/elsewhere/anchor.jsonl[/]
    """
    from tidelock.ledger import verify as verification
    from tidelock.ledger.findings import Report

    settings = read_settings(config, data=data, database_url=database_url, anchor=anchor)
    started = time.monotonic()
    with found_ledger(settings) as database:
        with terminal.Work("verifying", "events") as work:
            found = verification.verify(
                database, settings.anchor_path, lambda done, total: work.told(done, done / max(total, 1))
            )
        away: dict[str, Unreachable] = {}
        proven = _proven(settings, database, away)
        compared = _recomputed(context, settings, database) if tables else None
    checks = [*found.report.checks, *proven, *([] if compared is None else [_check(compared)])]
    if json:
        terminal.write_json(Report.of(checks))
    else:
        terminal.show_table(
            ["check", "", "detail"],
            [(check.name, _outcome(check, away), escape(check.detail)) for check in checks],
        )
        terminal.say(f"[dim]{time.monotonic() - started:.1f} s[/]")
    if found.first is not None:
        raise Difference(f"the ledger is not what was recorded; first difference: {found.first}")
    for check in proven:
        if not check.ok and check.name not in away:
            raise Difference(f"{check.name} is not what the ledger has; first difference: {check.detail}")
    if compared is not None and not compared.ok:
        raise Difference(f"the tables are not what the ledger gives; first difference: {compared.differences[0]}")
    for error in away.values():
        raise error


def _outcome(check: Check, away: Collection[str]) -> str:
    if check.name in away:
        return "[bold yellow]AWAY[/]"
    return "[green]ok[/]" if check.ok else "[bold red]DIFFERS[/]"


def _proven(settings: Settings, database: Database, away: dict[str, Unreachable]) -> list[Check]:
    """What is set of the mirror and the stores, each compared with the ledger; one that is away hides no other."""
    from tidelock.ledger.findings import Check
    from tidelock.ops import stores

    proofs: dict[str, Proof] = {name: partial(stores.proven, name) for name in stores.configured(settings)}
    if settings.kafka.brokers:
        proofs = {"kafka": _mirror_proven} | proofs
    if not proofs:
        return []
    checks = []
    with terminal.Work("comparing", "events") as work:

        def progress(done: int, total: int) -> None:
            work.told(done, done / max(total, 1))

        for name, proof in proofs.items():
            try:
                checks.append(proof(settings, database, progress))
            except Unreachable as error:
                away[name] = error
                checks.append(Check(name, False, error.message))
    return checks


def _mirror_proven(settings: Settings, database: Database, progress: Progress) -> Check:
    check_kafka(settings)
    from tidelock.mirror.proof import MirrorProof

    proof = MirrorProof(database, settings)
    proof.compare(progress)
    return proof.check()


def _recomputed(context: typer.Context, settings: Settings, database: Database) -> Recomputation | None:
    """None: no fold has ever run, so there are no tables."""
    with database.connect_sync(name="tidelock verify") as connection:
        if connection.execute(load("tidelock.live", "sql/shapes.sql")["read_version"]).fetchone() is None:
            return None
    return folding.recomputed(context, settings, database, [], folding.stop_on_signals())


def _check(compared: Recomputation) -> Check:
    from tidelock.ledger.findings import Check

    first = "" if compared.ok else f"; first: {compared.differences[0]}"
    return Check("tables", compared.ok, compared.summary() + first)
