"""The command that looks at the machine: `doctor`."""

from __future__ import annotations

import typer
from rich.markup import escape

from tidelock.cli import terminal
from tidelock.cli.serve import Host, Port
from tidelock.cli.session import Config, Data, DatabaseUrl, Json, read_settings
from tidelock.errors import Difference

app = typer.Typer()


@app.command(rich_help_panel="Look after")
def doctor(
    config: Config = None,
    data: Data = None,
    host: Host = None,
    port: Port = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Look at what Tidelock needs here: Python, Java, Spark, Postgres, port, disk, memory. Nothing is changed.

    On a cluster (`spark.master`) it runs a small job that says what each host's Python workers lack. Exits with 1 when
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
        raise Difference(f"Tidelock needs something else here: {', '.join(missing)}")
