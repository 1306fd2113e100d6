"""Commands for files of events: `import` and `export`."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from tidelock.cli import terminal
from tidelock.cli.flags import (
    After,
    Before,
    Causality,
    Config,
    Customer,
    Data,
    DatabaseUrl,
    From,
    Json,
    Stream,
    Tenant,
    To,
    read_settings,
    setting,
    slice_of,
)
from tidelock.cli.session import found_ledger, recording_ledger, set_on_signals
from tidelock.errors import SettingsError

if TYPE_CHECKING:
    from tidelock.sources.files.importing import Imported

app = typer.Typer()


@app.command("import", rich_help_panel="Events")
def import_file(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="CSV, JSONL or Parquet; the first two also .gz or .zst.")
    ],
    stream: Annotated[str | None, typer.Option(metavar="NAME", help="Stream of rows that name none.")] = None,
    tenant: Annotated[
        str | None, typer.Option(metavar="NAME", help="Tenant of rows that name none.", show_default="default")
    ] = None,
    file_format: Annotated[
        str | None, typer.Option("--format", metavar="csv|jsonl|parquet", help="What the ending does not tell.")
    ] = None,
    mapping: Annotated[
        list[str] | None,
        typer.Option(
            "--map", metavar="COLUMN=FIELD", help="A column's field; data.NAME a member of data, - leaves it out."
        ),
    ] = None,
    rejects: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write every row that was not taken there, as JSONL.")
    ] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Do not go on where an earlier run stopped.")] = False,
    chunk: Annotated[str | None, setting("import_chunk_events", "COUNT")] = None,
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Record the events of a file, in its order, each once.

    Columns named like an event's fields are these; all others become members of data.

    Stop it at any time: run again it goes on where it was, and what is recorded already is a duplicate.

    [dim]tidelock import calls.csv --stream api_calls --map customer=customerRef --map when=ts[/]
    [dim]tidelock import export.jsonl.zst --rejects rejected.jsonl[/]
    """
    from tidelock.postgres.reconnect import database_errors
    from tidelock.sources.fields import ColumnMap
    from tidelock.sources.files.importing import ImportFile
    from tidelock.sources.files.rows import format_of, open_rows

    settings = read_settings(config, data=data, database_url=database_url, import_chunk_events=chunk)
    wanted = ImportFile(file, file_format, stream, tenant, tuple(mapping or ()))
    # A mistyped name should not cost the start of a database, or make one.
    open_rows(file, format_of(file, file_format), ColumnMap(wanted.mapping)).close()
    started = time.monotonic()

    async def run() -> tuple[Imported, int]:
        from tidelock.sources.files.importing import Importing
        from tidelock.sources.sender import Sender

        async with recording_ledger(settings) as ledger:
            with terminal.Work(f"importing {escape(file.name)}", "rows") as work:
                sender = Sender(ledger.sequencer, settings, streams_open=True)
                importing = Importing(wanted, sender, settings.import_chunk_events, rejects, work.told)
                stopped = set_on_signals(importing.stop)
                result = await importing.run(ledger.database, restart=restart)
            return result, 0 if result.finished else stopped[0]

    with database_errors("import"):
        result, stopped = asyncio.run(run())
    if json:
        terminal.write_json(_told(result))
    else:
        _show(result, file, time.monotonic() - started, rejects)
    raise typer.Exit(stopped or (1 if result.conflicts or result.rejected else 0))


@app.command("export", rich_help_panel="Events")
def export_file(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to.", show_default="stdout")
    ] = None,
    file_format: Annotated[
        str | None,
        typer.Option("--format", metavar="jsonl|csv|parquet", help="Format.", show_default="by the ending, else jsonl"),
    ] = None,
    tenant: Tenant = None,
    stream: Stream = None,
    customer: Customer = None,
    causality: Causality = None,
    occurred_from: From = None,
    occurred_to: To = None,
    after: After = None,
    before: Before = None,
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Annotated[bool, typer.Option("--json", help="The same as --format jsonl, to stdout.")] = False,
) -> None:
    """Write events to a file, in ledger order, as the ledger is now.

    The file appears under its name when it is complete. `tidelock import` reads all of these formats.

    [dim]tidelock export -o january.parquet --from 2026-01-01T00:00:00Z --to 2026-02-01T00:00:00Z[/]
    [dim]tidelock export --stream api_calls | jq .quantity[/]
    """
    from tidelock.sources.files.exporting import export, published
    from tidelock.sources.files.rows import FORMATS, format_of

    settings = read_settings(config, data=data, database_url=database_url)
    events = slice_of(
        tenant,
        stream,
        customer,
        causality,
        occurred_from=occurred_from,
        occurred_to=occurred_to,
        after=after,
        before=before,
    )
    if json and (output is not None or file_format not in (None, "jsonl")):
        raise SettingsError("--json is --format jsonl to stdout; leave it out to have another format or a file")
    if output is None:
        wanted = file_format or "jsonl"
        if wanted not in FORMATS:
            raise SettingsError(f"--format {wanted!r} is not known; known are {', '.join(FORMATS)}")
        if wanted == "parquet" and sys.stdout.isatty():
            raise SettingsError("Parquet is not for the eye; name a file with --output")
        with found_ledger(settings) as database, terminal.output() as out:
            asyncio.run(export(database, events, wanted, out, lambda *_: None))
        return
    wanted = format_of(output, file_format)
    started = time.monotonic()
    with (
        found_ledger(settings) as database,
        published(output) as file,
        terminal.Work(f"exporting {escape(output.name)}", "events") as work,
    ):
        count = asyncio.run(export(database, events, wanted, file, work.told))
    took_s = time.monotonic() - started
    terminal.say(f"[green]{count:,} events[/] in {escape(str(output))}, {took_s:.1f} s")


def _told(result: Imported) -> dict[str, object]:
    import msgspec

    return {
        "accepted": result.accepted,
        "duplicates": result.duplicates,
        "conflicts": result.conflicts,
        "rejected": result.rejected,
        "skipped": result.skipped,
        "resumedAfter": result.resumed_after,
        "rows": result.rows_done,
        "finished": result.finished,
        "problems": [msgspec.Raw(problem.encode()) for problem in result.problems],
    }


def _show(result: Imported, file: Path, took_s: float, rejects: Path | None) -> None:
    from tidelock.model import Rejected

    rows = result.rows_done - result.resumed_after
    if result.resumed_after:
        terminal.say(f"Went on behind row {result.resumed_after:,}, where an earlier run had stopped.")
    counts = [("accepted", result.accepted, "green"), ("duplicates", result.duplicates, "yellow")]
    counts += [("conflicts", result.conflicts, "red"), ("rejected", result.rejected, "red")]
    shown = ", ".join(f"[{colour if count else 'dim'}]{count:,} {name}[/]" for name, count, colour in counts)
    skipped = f", {result.skipped:,} control events skipped" if result.skipped else ""
    terminal.show(f"{rows:,} rows of {escape(file.name)} in {took_s:.1f} s: {shown}{skipped}")
    for problem in result.problems:
        verdict = problem.verdict
        if isinstance(verdict, Rejected):
            what = f"[red]{verdict.error.code}[/]  {escape(verdict.error.message)}"
        else:
            what = f"[red]conflict[/]  key {escape(verdict.idempotency_key)} is recorded with other content"
            what += f" as sequence {verdict.ingress_sequence}"
        terminal.show(f"  row {problem.row.number}  {what}")
    more = result.rejected + result.conflicts - len(result.problems)
    if more > 0:
        hint = f"all are in {escape(str(rejects))}" if rejects else "--rejects FILE writes all of them"
        terminal.show(f"  [dim]and {more:,} more; {hint}[/]")
    if not result.finished:
        terminal.say(f"Stopped behind row {result.rows_done:,}. Run it again to go on.")
