"""Commands for salts: `salts list`, `salts add`, `salts promote`."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from tidelock.ops import terminal
from tidelock.ops.commands.session import Config, Data, DatabaseUrl, Json, found_ledger, made_ledger, read_settings

if TYPE_CHECKING:
    from tidelock.postgres.database import Database

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Salts, from which keys are derived: rotate them in two steps, `add` and then `promote`.",
)


@app.command("list")
def list_all(
    reveal: Annotated[bool, typer.Option("--reveal", help="Show the salts themselves, which are secret.")] = False,
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Show the salts, the one that derives first.

    [dim]tidelock salts list[/]
    """
    settings = read_settings(config, data=data, database_url=database_url)
    with found_ledger(settings) as database:
        _show(asyncio.run(_read(database)), reveal=reveal, json=json)


@app.command()
def add(
    salt: Annotated[
        str | None, typer.Argument(metavar="SALT", help="The new salt.", show_default="a random one")
    ] = None,
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Make a salt known, step one: every process recognises what it derives, and derives nothing with it yet.

    [dim]tidelock salts add[/]
    """
    settings = read_settings(config, data=data, database_url=database_url)
    with made_ledger(settings) as database:
        salts = asyncio.run(_add(database, salt))
    _show(salts, reveal=False, json=json)
    if len(salts) > 1 and not json:
        terminal.say(f"Known to every process at its next commit. Step two: tidelock salts promote {len(salts) - 1}")


@app.command()
def promote(
    position: Annotated[int, typer.Argument(metavar="POSITION", help="Of the salt, as `salts list` shows it.")],
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Let a known salt derive, step two. The others stay known: retries of what they derived are duplicates.

    [dim]tidelock salts promote 1[/]
    """
    settings = read_settings(config, data=data, database_url=database_url)
    with found_ledger(settings) as database:
        _show(asyncio.run(_promote(database, position)), reveal=False, json=json)


async def _read(database: Database) -> tuple[str, ...]:
    from tidelock.ledger.salts import read_salts

    async with await database.connect(name="tidelock salts") as connection:
        return (await read_salts(connection)).salts


async def _add(database: Database, salt: str | None) -> tuple[str, ...]:
    from tidelock.ledger.salts import add_salt

    async with await database.connect(name="tidelock salts") as connection:
        return (await add_salt(connection, salt)).salts


async def _promote(database: Database, position: int) -> tuple[str, ...]:
    from tidelock.ledger.salts import promote_salt

    async with await database.connect(name="tidelock salts") as connection:
        return (await promote_salt(connection, position)).salts


def _show(salts: tuple[str, ...], *, reveal: bool, json: bool) -> None:
    # A fingerprint tells two of them apart and gives nothing away: salts are long and random, or should be.
    found = [(position, sha256(salt.encode()).hexdigest()[:12], salt) for position, salt in enumerate(salts)]
    if json:
        told = [
            {"position": position, "derives": position == 0, "fingerprint": print_} for position, print_, _ in found
        ]
        secrets = [{"salt": salt} if reveal else {} for _, _, salt in found]
        terminal.write_json(*(one | secret for one, secret in zip(told, secrets, strict=True)))
        return
    terminal.show_table(
        ["position", "fingerprint", "", *(["salt"] if reveal else [])],
        [
            (
                str(position),
                print_,
                "[green]derives[/]" if position == 0 else "recognises",
                *([escape(salt)] if reveal else []),
            )
            for position, print_, salt in found
        ],
    )
