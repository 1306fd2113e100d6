"""The command `backfill`: an older table of events into the ledger."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from tidelock.cli import terminal
from tidelock.cli.flags import Config, Data, DatabaseUrl, Json, read_settings
from tidelock.cli.session import recording_ledger, set_on_signals
from tidelock.errors import SettingsError
from tidelock.instants import SECOND
from tidelock.sections import number_of
from tidelock.settings import Settings

if TYPE_CHECKING:
    from tidelock.sources.backfill.backfilling import Backfilled, OldRowProblem
    from tidelock.sources.backfill.events import Preview
    from tidelock.sources.backfill.oldtable import OldTable

app = typer.Typer()


@app.command("backfill", rich_help_panel="Events")
def backfill(
    url: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="URL", help="URL of the Postgres database that has the table; also TIDELOCK_BACKFILL_URL."
        ),
    ] = None,
    table: Annotated[str | None, typer.Option(metavar="NAME", help="Table or view to read.")] = None,
    mapping: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="COLUMN=FIELD",
            help="Map a column to a field; data.NAME is a member of data, - leaves the column out.",
        ),
    ] = None,
    stream: Annotated[str | None, typer.Option(metavar="NAME", help="Stream of rows that do not name one.")] = None,
    tenant: Annotated[
        str | None, typer.Option(metavar="NAME", help="Tenant of rows that do not name one.", show_default="default")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be recorded, with the first rows.")
    ] = False,
    rejects: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write every row that was not recorded to this file, as JSONL.")
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Read all rows again; rows already recorded are duplicates.")
    ] = False,
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Record each row of an older Postgres table exactly once, ordered by received_at, occurred_at and id.

    Rows keep their received_at. Columns are recognised by name; --dry-run shows the mapping, --map changes it.

    You can stop it at any time. Run it again to resume where it stopped. Producers may keep writing meanwhile.

    [dim]tidelock backfill --from postgresql://reader@old.example/workflows --table workflow_events --dry-run[/]
    [dim]tidelock backfill --from postgresql://reader@old.example/workflows --table calls --map kind=stream[/]
    """
    if "" in (url, table):
        raise SettingsError("--from and --table must not be empty")
    flags = {"backfill.url": url, "backfill.table": table, "backfill.stream": stream, "backfill.tenant": tenant}
    settings = read_settings(config, data=data, database_url=database_url, **flags)
    told = _told(settings.backfill.map, mapping or ())
    with closing(_opened(settings, told)) as old:
        if dry_run:
            from tidelock.sources.backfill.events import preview

            found = preview(old, settings)
            if json:
                terminal.write_json(found)
            else:
                _show_preview(found, old.place)
            return
        started = time.monotonic()
        result, problems, stopped = _run(settings, old, restart=restart, all_problems=rejects is not None)
    if rejects is not None:
        _write(rejects, problems)
    if json:
        terminal.write_json(_report(result))
    else:
        _show(result, old.name, time.monotonic() - started, rejects)
    raise typer.Exit(stopped or (0 if result.complete else 1))


def _told(file: Mapping[str, str], flags: list[str] | tuple[str, ...]) -> dict[str, tuple[str, str]]:
    """How columns are mapped, and by what; a flag overrides the file."""
    told = {column: (field, "backfill.map") for column, field in file.items()}
    given: set[str] = set()
    for pair in flags:
        column, separator, field = pair.rpartition("=")
        if not separator or not column or not field:
            raise SettingsError(f"--map {pair!r} is not of the form COLUMN=FIELD")
        if column in given:
            raise SettingsError(f"--map names the column {column!r} twice")
        given.add(column)
        told[column] = (field, "--map")
    return told


def _opened(settings: Settings, told: Mapping[str, tuple[str, str]]) -> OldTable:
    """The older table, checked before a ledger is opened, so that a mistyped name fails at once."""
    from tidelock.postgres.reconnect import Patience
    from tidelock.sources.backfill.oldtable import OldTable

    wanted = settings.backfill
    if wanted.url is None or wanted.table is None:
        what = "--from URL" if wanted.url is None else "--table NAME"
        raise SettingsError(f"{what} is missing; pass it or set it in [backfill] of tidelock.toml")
    old = OldTable(wanted.url, settings.connect_timeout_s, Patience(settings.outage_patience / SECOND))
    try:
        old.choose(wanted.table, told, stream=wanted.stream, tenant_id=wanted.tenant)
    except BaseException:
        old.close()
        raise
    return old


def _run(
    settings: Settings, old: OldTable, *, restart: bool, all_problems: bool
) -> tuple[Backfilled, list[OldRowProblem], int]:
    async def run() -> tuple[Backfilled, list[OldRowProblem], int]:
        from tidelock.sources.backfill.backfilling import Backfilling
        from tidelock.sources.sender import Sender

        async with recording_ledger(settings) as ledger:
            with terminal.Work(f"backfilling {escape(old.name)}", "rows") as work:
                sender = Sender(ledger.sequencer, settings, streams_open=True)
                backfilling = Backfilling(old, sender, settings.backfill.chunk_events, work.told)
                stopped = set_on_signals(backfilling.stop)
                result = await backfilling.run(ledger.database, restart=restart)
            problems = await backfilling.all_problems(ledger.database) if all_problems else []
            return result, problems, 0 if result.finished else stopped[0]

    return asyncio.run(run())


def _write(path: Path, problems: list[OldRowProblem]) -> None:
    import msgspec

    try:
        path.write_bytes(b"".join(msgspec.json.encode(problem) + b"\n" for problem in problems))
    except OSError as error:
        raise SettingsError(f"{path} cannot be written: {error.strerror}") from None


def _report(result: Backfilled) -> dict[str, object]:
    return {
        **asdict(result.counts),
        "total": asdict(result.total),
        "resumedAfter": result.resumed_after,
        "unplaced": result.unplaced,
        "behind": result.behind,
        "finished": result.finished,
        "problems": result.problems,
    }


def _show_preview(found: Preview, place: str) -> None:
    from tidelock.sources.backfill.events import shown

    terminal.show(
        f"{number_of(found.rows, 'row')} of {escape(found.table)} at {escape(place)}, by received_at, occurred_at, id"
    )
    terminal.show("")
    terminal.show_table(
        ["column", "type", "is", "says"],
        [(escape(each.column), each.type, escape(each.field or "left out"), each.by) for each in found.columns],
    )
    terminal.show(f"\nA row is identified by {escape(found.key)}. The first rows:\n")
    for row in found.first:
        if row.error is not None:
            terminal.show(f"  [red]{escape(row.id)}  {row.error.code}  {escape(row.error.message)}[/]")
        else:
            terminal.show(f"  {escape(shown(row))}")
    if found.unplaced:
        terminal.show(f"\n[red]{number_of(found.unplaced, 'row')} without received_at or id cannot be recorded[/]")


def _show(result: Backfilled, table: str, took_s: float, rejects: Path | None) -> None:
    if result.resumed_after:
        terminal.say(f"Resumed after row {result.resumed_after:,}, where an earlier run stopped.")
    counts, total = result.counts, result.total
    named = [(f"{counts.accepted:,} accepted", counts.accepted, "green")]
    named += [(number_of(counts.duplicates, "duplicate"), counts.duplicates, "yellow")]
    named += [(number_of(counts.conflicts, "conflict"), counts.conflicts, "red")]
    named += [(f"{counts.rejected:,} rejected", counts.rejected, "red")]
    told = ", ".join(f"[{colour if count else 'dim'}]{text}[/]" for text, count, colour in named)
    terminal.show(f"{number_of(counts.rows, 'row')} of {escape(table)} in {took_s:.1f} s: {told}")
    for problem in result.problems:
        terminal.show(f"  id {escape(str(problem.id))}  [red]{escape(problem.told)}[/]")
    more = total.rejected + total.conflicts + result.unplaced - len(result.problems)
    if more > 0:
        hint = (
            f"see {escape(str(rejects))} for all of them"
            if rejects
            else "use --rejects FILE to write all of them to a file"
        )
        terminal.show(f"  [dim]and {more:,} more; {hint}[/]")
    if result.behind:
        terminal.show(
            f"[red]{number_of(result.behind, 'row')} added before the position already reached[/]; --restart reads all "
            "rows again"
        )
    if not result.finished:
        terminal.say(f"Stopped after row {total.rows:,}. Run the command again to continue.")
