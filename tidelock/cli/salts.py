"""Commands for salts: `salts list`, `salts add`, `salts promote`."""

from __future__ import annotations

from hashlib import sha256
from typing import Annotated

import typer
from rich.markup import escape

from tidelock.cli import terminal
from tidelock.cli.flags import Config, Data, DatabaseUrl, Json, read_settings
from tidelock.cli.session import asked, found_ledger, made_ledger

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Salts for deriving idempotency keys. Rotate them in two steps: `add`, then `promote`.",
)

#: of connections
_NAME = "tidelock salts"


@app.command("list")
def list_all(
    reveal: Annotated[bool, typer.Option("--reveal", help="Show the salts themselves, which are secret.")] = False,
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """List the salts, the one in use first.

    [dim]tidelock salts list[/]
    """
    from tidelock.ledger.salts import read_salts

    settings = read_settings(config, data=data, database_url=database_url)
    with found_ledger(settings) as database:
        _show(asked(database, _NAME, read_salts).salts, reveal=reveal, json=json)


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
    """Rotate the salt, step 1: add one.

    Every process recognises keys derived with it, but does not derive keys with it yet.

    [dim]tidelock salts add[/]
    """
    from tidelock.ledger.salts import add_salt

    settings = read_settings(config, data=data, database_url=database_url)
    with made_ledger(settings) as database:
        salts = asked(database, _NAME, lambda each: add_salt(each, salt)).salts
    _show(salts, reveal=False, json=json)
    if len(salts) > 1 and not json:
        terminal.say(f"Every process knows it at its next commit. Step 2: tidelock salts promote {len(salts) - 1}")


@app.command()
def promote(
    position: Annotated[
        int, typer.Argument(metavar="POSITION", help="Position of the salt, as shown by `salts list`.")
    ],
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Rotate the salt, step 2: derive keys with a known salt.

    The others stay known, so retries of older events are still duplicates.

    [dim]tidelock salts promote 1[/]
    """
    from tidelock.ledger.salts import promote_salt

    settings = read_settings(config, data=data, database_url=database_url)
    with found_ledger(settings) as database:
        promoted = asked(database, _NAME, lambda each: promote_salt(each, position))
    _show(promoted.salts, reveal=False, json=json)


def _show(salts: tuple[str, ...], *, reveal: bool, json: bool) -> None:
    # A fingerprint distinguishes two salts and reveals nothing: salts are long and random, or should be.
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
