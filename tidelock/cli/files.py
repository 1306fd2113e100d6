"""Commands for files of events: `import` and `export`."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.markup import escape

from tidelock.cli import terminal
from tidelock.cli.flags import (
    After,
    Batch,
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
    check_texts,
    read_settings,
    setting,
    slice_of,
)
from tidelock.cli.session import found_ledger, recording_ledger, set_on_signals
from tidelock.errors import SettingsError
from tidelock.sections import number_of
from tidelock.settings import Settings

if TYPE_CHECKING:
    from tidelock.sources.files.dryrun import DryRun
    from tidelock.sources.files.importing import Imported, ImportFile, RowProblem

app = typer.Typer()


@app.command("import", rich_help_panel="Events")
def import_file(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="CSV, JSONL or Parquet; CSV and JSONL also as .gz or .zst.")
    ],
    stream: Annotated[str | None, typer.Option(metavar="NAME", help="Stream of rows that do not name one.")] = None,
    tenant: Annotated[
        str | None, typer.Option(metavar="NAME", help="Tenant of rows that do not name one.", show_default="default")
    ] = None,
    file_format: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="csv|jsonl|parquet", help="Format of the file, if its extension does not show it."
        ),
    ] = None,
    mapping: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="COLUMN=FIELD",
            help="Map a column to a field; data.NAME is a member of data, - leaves the column out.",
        ),
    ] = None,
    rejects: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write every row that was not recorded to this file, as JSONL.")
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Start from the first row, even if an earlier run stopped halfway.")
    ] = False,
    as_is: Annotated[
        bool, typer.Option("--as-is", help="Keep the file's order instead of recording it in order of ts.")
    ] = False,
    batch: Annotated[
        str | None,
        typer.Option(
            "--batch", metavar="NAME", help="batchId of rows that name none.", show_default="file name and digest"
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Show what would be recorded, and why the rest would not, without recording anything."
        ),
    ] = False,
    chunk: Annotated[str | None, setting("import_chunk_events", "COUNT")] = None,
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Record each event of a file exactly once, in order of ts.

    Columns named like fields of an event map to those fields; all others become members of data. Rows without ts come
    last.

    You can stop it at any time. Run it again to resume where it stopped; events already recorded count as duplicates.

    The rows are a batch, which `tidelock batches` lists and `tidelock revert` takes back.

    [dim]tidelock import calls.csv --stream api_calls --map customer=customerRef --map when=ts --dry-run[/]
    [dim]tidelock import export.jsonl.zst --rejects rejected.jsonl[/]
    """
    from tidelock.ingest.wire import NAME_CHARACTERS_MAX
    from tidelock.postgres.reconnect import database_errors
    from tidelock.sources.files.importing import ImportFile
    from tidelock.sources.files.order import SortRoom

    settings = read_settings(config, data=data, database_url=database_url, import_chunk_events=chunk)
    wanted = ImportFile(file, file_format, stream, tenant, tuple(mapping or ()), as_is=as_is, batch_id=batch)
    check_texts(batch=batch)
    if batch is not None and not 0 < len(batch) <= NAME_CHARACTERS_MAX:
        raise SettingsError(f"--batch has 1 to {NAME_CHARACTERS_MAX} characters")
    # A mistyped name should not start a database, or create one.
    wanted.open().close()
    started = time.monotonic()
    if dry_run:
        _dry_run(settings, wanted, json=json)

    async def run() -> tuple[Imported, int]:
        from tidelock.sources.files.importing import Importing
        from tidelock.sources.sender import Sender

        async with recording_ledger(settings) as ledger:
            with _FileWork(file) as work:
                sender = Sender(ledger.sequencer, settings, streams_open=True)
                room = SortRoom.of(settings, embedded=ledger.database.embedded)
                importing = Importing(wanted, sender, settings.import_chunk_events, room, rejects=rejects)
                stopped = set_on_signals(importing.stop)
                result = await importing.run(ledger.database, work, restart=restart)
            return result, 0 if result.finished else stopped[0]

    with database_errors("import"):
        result, stopped = asyncio.run(run())
    if json:
        terminal.write_json(_told(result))
    else:
        _show(result, file, time.monotonic() - started, rejects)
    raise typer.Exit(stopped or (1 if result.conflicts or result.rejected else 0))


class _FileWork(terminal.Work):
    """Progress on one file, which is read in several passes."""

    def __init__(self, file: Path) -> None:
        self._name = escape(file.name)
        super().__init__(f"importing {self._name}", "rows")

    def begin(self, what: str) -> None:
        super().begin(f"{what} {self._name}")


def _dry_run(settings: Settings, wanted: ImportFile, *, json: bool) -> NoReturn:
    """Show what importing the file would do. Exit 1 if some row would not be recorded as it is in the file."""
    from tidelock.sources.files.dryrun import dry_run
    from tidelock.sources.files.order import SortRoom

    with found_ledger(settings) as database, _FileWork(wanted.path) as work:
        room = SortRoom.of(settings, embedded=database.embedded)
        result = asyncio.run(dry_run(wanted, database, settings, room, work))
    if json:
        terminal.write_json(_told_of_dry_run(result))
    else:
        _show_dry_run(result, wanted)
    raise typer.Exit(1 if result.conflicts or result.rejected else 0)


@app.command("export", rich_help_panel="Events")
def export_file(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="File to write.", show_default="stdout")
    ] = None,
    file_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="jsonl|csv|parquet",
            help="Output format.",
            show_default="by the file's extension, else jsonl",
        ),
    ] = None,
    tenant: Tenant = None,
    stream: Stream = None,
    customer: Customer = None,
    causality: Causality = None,
    batch: Batch = None,
    occurred_from: From = None,
    occurred_to: To = None,
    after: After = None,
    before: Before = None,
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Annotated[bool, typer.Option("--json", help="Same as --format jsonl, on stdout.")] = False,
) -> None:
    """Write the events currently in the ledger to a file, in ledger order.

    The file is written under a temporary name and renamed when complete. `tidelock import` reads every format.

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
        batch=batch,
        occurred_from=occurred_from,
        occurred_to=occurred_to,
        after=after,
        before=before,
    )
    if json and (output is not None or file_format not in (None, "jsonl")):
        raise SettingsError("--json means --format jsonl on stdout; omit it for another format or a file")
    if output is None:
        wanted = file_format or "jsonl"
        if wanted not in FORMATS:
            raise SettingsError(f"--format {wanted!r} is not a known format; choose one of {', '.join(FORMATS)}")
        if wanted == "parquet" and sys.stdout.isatty():
            raise SettingsError("Parquet is a binary format; give a file name with --output")
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
    terminal.say(f"[green]{number_of(count, 'event')}[/] in {escape(str(output))}, {took_s:.1f} s")


def _told(result: Imported) -> dict[str, object]:
    import msgspec

    return {
        "accepted": result.accepted,
        "duplicates": result.duplicates,
        "conflicts": result.conflicts,
        "rejected": result.rejected,
        "skipped": result.skipped,
        "batchId": result.batch_id,
        "resumedAfter": result.resumed_after,
        "rows": result.rows_done,
        "finished": result.finished,
        "problems": [msgspec.Raw(problem.encode()) for problem in result.problems],
    }


def _told_of_dry_run(result: DryRun) -> dict[str, object]:
    import msgspec

    return {
        "rows": result.rows,
        "accepted": result.accepted,
        "duplicates": {"recorded": result.recorded, "repeated": result.repeated},
        "conflicts": result.conflicts,
        "rejected": dict(result.rejected),
        "skipped": result.skipped,
        "adjustments": [
            {"metric": name, "reason": reason, "count": count}
            for reason, counts in (("late", result.late), ("closed", result.closed))
            for name, count in counts.items()
            if count
        ],
        "inOrder": result.sorted_already,
        "problems": [msgspec.Raw(problem.encode()) for problem in result.problems],
    }


def _show_dry_run(result: DryRun, wanted: ImportFile) -> None:
    rejected = sum(result.rejected.values())
    terminal.show(
        f"{number_of(result.rows, 'row')} of {escape(wanted.path.name)}; nothing was recorded. An import would record "
        f"[green]{result.accepted:,}[/]."
    )
    if not wanted.as_is and not result.sorted_already:
        terminal.show("  The file is not in order of ts and would be sorted first.")
    if result.recorded:
        terminal.show(f"  [yellow]{number_of(result.recorded, 'duplicate')}[/]: recorded already")
    if result.repeated:
        terminal.show(f"  [yellow]{number_of(result.repeated, 'duplicate')}[/]: repeated in the file")
    if result.conflicts:
        terminal.show(f"  [red]{number_of(result.conflicts, 'conflict')}[/]: recorded already, with other content")
    for code, count in result.rejected.most_common():
        terminal.show(f"  [red]{count:,} rejected[/]: {code}")
    for metric, count in result.late.items():
        if count:
            terminal.show(
                f"  [yellow]{number_of(count, 'adjustment')}[/] of {escape(metric)}: older than the counter's "
                "latest event by more than the meter's lateness"
            )
    for metric, count in result.closed.items():
        if count:
            terminal.show(
                f"  [yellow]{number_of(count, 'adjustment')}[/] of {escape(metric)}: for closed periods; "
                "`tidelock periods` says through when"
            )
    _show_problems(result.problems, rejected + result.conflicts, "import with --rejects FILE to write all of them")


def _show_problems(problems: Sequence[RowProblem], count: int, hint: str) -> None:
    from tidelock.model import Rejected

    for problem in problems:
        verdict = problem.verdict
        if isinstance(verdict, Rejected):
            what = f"[red]{verdict.error.code}[/]  {escape(verdict.error.message)}"
        else:
            what = f"[red]conflict[/]  key {escape(verdict.idempotency_key)} is recorded with other content"
            what += f" as sequence {verdict.ingress_sequence}"
        terminal.show(f"  row {problem.row.number}  {what}")
    if count > len(problems):
        terminal.show(f"  [dim]and {count - len(problems):,} more; {hint}[/]")


def _show(result: Imported, file: Path, took_s: float, rejects: Path | None) -> None:
    rows = result.rows_done - result.resumed_after
    if result.resumed_after:
        terminal.say(f"Continued after {number_of(result.resumed_after, 'row')} of an earlier run.")
    counts = [(f"{result.accepted:,} accepted", result.accepted, "green")]
    counts += [(number_of(result.duplicates, "duplicate"), result.duplicates, "yellow")]
    counts += [(number_of(result.conflicts, "conflict"), result.conflicts, "red")]
    counts += [(f"{result.rejected:,} rejected", result.rejected, "red")]
    shown = ", ".join(f"[{colour if count else 'dim'}]{text}[/]" for text, count, colour in counts)
    skipped = f", {number_of(result.skipped, 'control event')} skipped" if result.skipped else ""
    terminal.show(f"{number_of(rows, 'row')} of {escape(file.name)} in {took_s:.1f} s: {shown}{skipped}")
    if result.accepted:
        terminal.show(f"  [dim]batch {escape(result.batch_id)}[/]")
    hint = (
        f"see {escape(str(rejects))} for all of them"
        if rejects
        else "use --rejects FILE to write all of them to a file"
    )
    _show_problems(result.problems, result.rejected + result.conflicts, hint)
    if not result.finished:
        terminal.say(f"Stopped after {number_of(result.rows_done, 'row')}. Run the command again to continue.")
