"""Commands that prove the ledger: `verify`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from tidelock.errors import Difference
from tidelock.ledger.queries import load
from tidelock.ops import terminal
from tidelock.ops.commands import folding
from tidelock.ops.commands.mirroring import check_kafka
from tidelock.ops.commands.session import Config, Data, DatabaseUrl, Json, found_ledger, read_settings, setting
from tidelock.settings import Settings

if TYPE_CHECKING:
    from tidelock.fold.recomputation import Recomputation
    from tidelock.ledger.database import Database
    from tidelock.ledger.findings import Check
    from tidelock.mirror.proof import MirrorProof
    from tidelock.sinks.proof import StoreProof

app = typer.Typer()


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

    Exits with 1 and names the first difference. Writers may go on meanwhile.

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
        stores = _proven(settings, database)
        compared = _recomputed(context, settings, database) if tables else None
    proven = [proof.check() for proof in stores]
    checks = [*found.report.checks, *proven, *([] if compared is None else [_check(compared)])]
    if json:
        terminal.write_json(Report.of(checks))
    else:
        terminal.show_table(
            ["check", "", "detail"],
            [
                (check.name, "[green]ok[/]" if check.ok else "[bold red]DIFFERS[/]", escape(check.detail))
                for check in checks
            ],
        )
        terminal.say(f"[dim]{time.monotonic() - started:.1f} s[/]")
    if found.first is not None:
        raise Difference(f"the ledger is not what was recorded; first difference: {found.first}")
    for check in proven:
        if not check.ok:
            raise Difference(f"{check.name} is not what the ledger has; first difference: {check.detail}")
    if compared is not None and not compared.ok:
        raise Difference(f"the tables are not what the ledger gives; first difference: {compared.differences[0]}")


def _proven(settings: Settings, database: Database) -> list[StoreProof | MirrorProof]:
    """What is set of the mirror and the stores, each compared with the ledger."""
    from tidelock.ops import stores

    proven: list[StoreProof | MirrorProof] = []
    if not settings.kafka.brokers and not stores.configured(settings):
        return proven
    with terminal.Work("comparing", "events") as work:

        def progress(done: int, total: int) -> None:
            work.told(done, done / max(total, 1))

        if settings.kafka.brokers:
            check_kafka(settings)
            from tidelock.mirror.proof import MirrorProof

            mirror = MirrorProof(database, settings)
            mirror.compare(progress)
            proven.append(mirror)
        return [*proven, *stores.proofs(settings, database, progress)]


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
