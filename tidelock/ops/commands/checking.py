"""Commands that prove the ledger: `verify`."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.markup import escape

from tidelock.errors import Difference
from tidelock.ops import terminal
from tidelock.ops.commands.session import Config, Data, DatabaseUrl, Json, found_ledger, read_settings, setting

app = typer.Typer()


@app.command(rich_help_panel="Look after")
def verify(
    anchor: Annotated[str | None, setting("anchor", "FILE")] = None,
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Prove that the ledger is what was recorded: nothing changed, missing, moved or cut off.

    Checks the chain over every column, numbering, order, each event's content and identity, and the anchor file.

    Exits with 1 and names the first difference. Writers may go on meanwhile.

    [dim]tidelock verify --anchor /mnt/elsewhere/anchor.jsonl[/]
    """
    from tidelock.ledger import verify as verification

    settings = read_settings(config, data=data, database_url=database_url, anchor=anchor)
    started = time.monotonic()
    with found_ledger(settings) as database, terminal.Work("verifying", "events") as work:
        found = verification.verify(
            database, settings.anchor_path, lambda done, total: work.told(done, done / max(total, 1))
        )
    if json:
        terminal.write_json(found.report)
    else:
        terminal.show_table(
            ["check", "", "detail"],
            [
                (check.name, "[green]ok[/]" if check.ok else "[bold red]DIFFERS[/]", escape(check.detail))
                for check in found.report.checks
            ],
        )
        terminal.say(f"[dim]{time.monotonic() - started:.1f} s[/]")
    if found.first is not None:
        raise Difference(f"the ledger is not what was recorded; first difference: {found.first}")
