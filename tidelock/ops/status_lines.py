"""Status lines: where a ledger stands, as people read it in a terminal."""

from __future__ import annotations

from rich.markup import escape

from tidelock.model import DEFAULT_TENANT
from tidelock.ops import terminal
from tidelock.ops.status import SequenceStatus, Status


def show_status(found: Status) -> None:
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
    """Where numbers come from, and since when."""
    source = "from the sequence database" if sequence.source == "remote" else "by the ledger itself"
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
        terminal.show("[dim]and more: windows_told_max says how many are shown[/]")


def _size(number: int) -> str:
    amount = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            break
        amount /= 1024
    return f"{amount:,.0f} {unit}" if unit == "B" else f"{amount:,.1f} {unit}"
