"""Commands that look at the ledger and at the machine: `status`, `verify`, `doctor`."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from tidelock.cli import terminal
from tidelock.cli.copies import check_kafka
from tidelock.cli.flags import Config, Data, DatabaseUrl, Host, Json, Port, read_settings, setting
from tidelock.cli.fold import recomputed
from tidelock.cli.session import found_ledger, stop_on_signals
from tidelock.errors import Difference, Unreachable
from tidelock.model import DEFAULT_TENANT
from tidelock.postgres.queries import load
from tidelock.settings import Settings

if TYPE_CHECKING:
    from tidelock.cli.status import SequenceStatus, Status
    from tidelock.fold.redefine.recomputation import Recomputation
    from tidelock.ledger.findings import Check
    from tidelock.postgres.database import Database

app = typer.Typer()

#: called with the sequence reached so far and the last one
Progress = Callable[[int, int], None]
Proof = Callable[[Settings, "Database", Progress], "Check"]


@app.command(rich_help_panel="Operations")
def status(
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Show the state of the ledger: head, readers, windows, partitions, keys, salts, anchor.

    [dim]tidelock status --json | jq .head.ingressSequence[/]
    """
    from tidelock.cli.status import read_status

    settings = read_settings(config, data=data, database_url=database_url)
    with found_ledger(settings) as database:
        found = read_status(database, settings)
    if json:
        terminal.write_json(found)
    else:
        _show_status(found)


@app.command(rich_help_panel="Operations")
def verify(
    anchor: Annotated[str | None, setting("anchor", "FILE")] = None,
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    tables: Annotated[
        bool,
        typer.Option(
            "--tables/--no-tables",
            help="Also recompute the tables, on Spark, if a fold has run.",
            show_default="--tables",
        ),
    ] = True,
    json: Json = False,
) -> None:
    """Prove that the ledger is what was recorded: nothing changed, missing, moved or cut off.

    Checks the chain over every column, numbering, order, each event's content and identity, the anchor file, and that
    folding the ledger again gives the same tables. Kafka, ClickHouse and the lake, where configured, must hold the same
    events in the same order.

    Exits with 1 and names the first difference; with 3 if nothing differs but something is unreachable. Writers may
    continue meanwhile.

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
        compared = _recomputed(settings, database) if tables else None
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
        raise Difference(f"the ledger differs from what was recorded; first difference: {found.first}")
    for check in proven:
        if not check.ok and check.name not in away:
            raise Difference(f"{check.name} differs from the ledger; first difference: {check.detail}")
    if compared is not None and not compared.ok:
        raise Difference(f"the tables differ from what the ledger gives; first difference: {compared.differences[0]}")
    for error in away.values():
        raise error


@app.command(rich_help_panel="Operations")
def doctor(
    config: Config = None,
    data: Data = None,
    host: Host = None,
    port: Port = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Check what Tidelock needs on this machine: Python, Java, Spark, Postgres, port, disk, memory. Changes nothing.

    On a cluster (`spark.master`), it runs a small job that finds what each host's Python workers lack. Exits with 1 if
    something is missing, and says what to do.

    [dim]tidelock doctor --port 8080[/]
    """
    from tidelock.cli.doctor import examine

    settings = read_settings(config, data=data, host=host, port=port, database_url=database_url)
    findings = list(examine(settings))
    if json:
        terminal.write_json(*(finding.form() for finding in findings))
    else:
        terminal.show_table(
            ["", "", "found"],
            [
                (
                    finding.name,
                    "[green]ok[/]" if finding.ok else "[bold red]MISSING[/]",
                    escape(finding.detail) + (f"\n[yellow]{escape(finding.advice)}[/]" if finding.advice else ""),
                )
                for finding in findings
            ],
        )
    if missing := [finding.name for finding in findings if not finding.ok]:
        raise Difference(f"Tidelock is missing something here: {', '.join(missing)}")


def _show_status(found: Status) -> None:
    head, anchor = found.head, found.anchor
    kind = "embedded" if found.database.embedded else "external"
    anchored = f"commit {anchor.commit_id:,} at {anchor.at}" if anchor.commit_id is not None else "nothing yet"
    pending = [known.title for known in found.migrations if known.state != "applied"]
    terminal.show_facts(
        [
            ("database", f"{escape(found.database.place)}, {kind}, Postgres {found.database.server_version}"),
            ("head", f"sequence [bold]{head.ingress_sequence:,}[/] in commit {head.commit_id:,}"),
            ("last event", head.at or "none yet"),
            ("numbers", _numbers(found.sequence)),
            ("digest", f"{head.digest[:16]}..."),
            ("identities", f"about {found.identities_estimate:,}, {_size(found.identities_bytes)}"),
            ("salts", f"{found.salts}"),
            ("API keys", f"{found.keys.active} active, {found.keys.revoked} revoked"),
            ("migrations", f"[red]{', '.join(pending)}[/]" if pending else f"{len(found.migrations)}, all applied"),
            (
                "anchor",
                f"{anchored}, in {escape(anchor.path)}"
                + (f" [red]{escape(anchor.problem)}[/]" if anchor.problem else ""),
            ),
        ]
    )
    terminal.show("")
    terminal.show_table(
        ["partition", "size#"],
        [(part.name, _size(part.bytes)) for part in found.partitions],
    )
    if found.readers:
        terminal.show("")
        terminal.show_table(
            ["reader", "through#", "behind by#", "for#"],
            [
                (
                    escape(each.name),
                    f"{each.ingress_sequence:,}",
                    f"{each.lag_sequences:,}",
                    f"{each.lag_seconds:,.1f} s" if each.lag_sequences else "",
                )
                for each in found.readers
            ],
        )
    if found.kafka:
        terminal.show("")
        terminal.show_table(
            ["topic", "partition#", "offsets#", "sequences#"],
            [
                (
                    escape(each.topic),
                    f"{each.partition}",
                    f"{each.first_offset:,} to {each.last_offset:,}",
                    f"{each.first_sequence:,} to {each.last_sequence:,}",
                )
                for each in found.kafka
            ],
        )
    if found.windows:
        terminal.show("")
        _show_windows(found)


def _numbers(sequence: SequenceStatus) -> str:
    """Where sequences come from, and since when."""
    source = "from the sequence database" if sequence.source == "remote" else "by the ledger"
    since = f" since {sequence.since}" if sequence.since else ""
    skipped = f", {sequence.skipped:,} left out" if sequence.skipped else ""
    if sequence.database is None:
        return source + since + skipped
    now = f"at {sequence.last_number:,}" if sequence.last_number is not None else "not used yet"
    if sequence.problem:
        now = f"[red]{escape(sequence.problem)}[/]"
    return f"{source}{since}{skipped}; {escape(sequence.database)} is {now}"


def _show_windows(found: Status) -> None:
    several = {each.tenant_id for each in found.windows} != {DEFAULT_TENANT}
    terminal.show_table(
        ["window", *(["tenant"] if several else []), "watermark", "closed through", "held#", "late#"],
        [
            (
                escape(each.window),
                *([escape(each.tenant_id)] if several else []),
                each.watermark or "[dim]-[/]",
                each.closed_through or "[dim]-[/]",
                f"{each.buffer_size:,}",
                f"{each.late_dropped_count:,}",
            )
            for each in sorted(found.windows, key=lambda each: (each.window, each.tenant_id))
        ],
    )
    if found.windows_cut:
        terminal.show("[dim]and more; the setting windows_told_max limits how many are shown[/]")


def _size(number: int) -> str:
    amount = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            break
        amount /= 1024
    return f"{amount:,.0f} {unit}" if unit == "B" else f"{amount:,.1f} {unit}"


def _outcome(check: Check, away: Collection[str]) -> str:
    if check.name in away:
        return "[bold yellow]AWAY[/]"
    return "[green]ok[/]" if check.ok else "[bold red]DIFFERS[/]"


def _proven(settings: Settings, database: Database, away: dict[str, Unreachable]) -> list[Check]:
    """Compare the mirror and each configured store with the ledger; one that is unreachable hides no other."""
    from tidelock.ledger.findings import Check
    from tidelock.sinks import opening

    proofs: dict[str, Proof] = {name: partial(opening.proven, name) for name in opening.configured(settings)}
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


def _recomputed(settings: Settings, database: Database) -> Recomputation | None:
    """The recomputation; None if no fold has ever run, so there are no tables."""
    with database.connect_sync(name="tidelock verify") as connection:
        if connection.execute(load("tidelock.views", "sql/catalog.sql")["read_version"]).fetchone() is None:
            return None
    return recomputed(settings, database, [], stop_on_signals())


def _check(compared: Recomputation) -> Check:
    from tidelock.ledger.findings import Check

    first = "" if compared.ok else f"; first: {compared.differences[0]}"
    return Check("tables", compared.ok, compared.summary() + first)
