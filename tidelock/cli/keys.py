"""Commands for API keys: `keys create`, `keys list`, `keys revoke`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from tidelock.cli import terminal
from tidelock.cli.flags import Config, Data, DatabaseUrl, Json, read_settings
from tidelock.cli.session import asked, found_ledger, made_ledger
from tidelock.errors import NotFound
from tidelock.model import ALL_TENANTS

if TYPE_CHECKING:
    from tidelock.ledger.apikeys import ApiKey

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="API keys: who may read and write, and for which tenant.",
)

#: of connections
_NAME = "tidelock keys"


@app.command()
def create(
    tenant: Annotated[str, typer.Option(metavar="NAME", help="Tenant it may read and write; * means every tenant.")],
    scope: Annotated[
        list[str], typer.Option(metavar="SCOPE", help="ingest, read, triggers or admin; may be repeated.")
    ],
    stream: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Streams it may write; default: all.")
    ] = None,
    label: Annotated[str, typer.Option(metavar="TEXT", help="Description of its purpose.")] = "",
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Create a key. It is shown once and not stored.

    Once a key exists, every request needs one.

    [dim]tidelock keys create --tenant acme --scope ingest --scope read --label "billing service"[/]
    """
    from tidelock.ledger.apikeys import create_key

    settings = read_settings(config, data=data, database_url=database_url)
    with made_ledger(settings) as database:
        key_id, key = asked(database, _NAME, lambda each: create_key(each, tenant, scope, stream or None, label))
    if json:
        told = {"id": key_id, "key": key, "tenantId": tenant, "scopes": scope, "streams": stream or None}
        terminal.write_json({**told, "label": label})
        return
    terminal.show(f"[bold]{key}[/]")
    terminal.say(f"Store it now: it cannot be shown again. Revoke it with: tidelock keys revoke {key_id}")


@app.command("list")
def list_all(
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """List all keys, including revoked ones, without the keys themselves.

    [dim]tidelock keys list --json | jq 'select(.revokedAt == null)'[/]
    """
    from tidelock.ledger.apikeys import list_keys

    settings = read_settings(config, data=data, database_url=database_url)
    with found_ledger(settings) as database:
        found = asked(database, _NAME, list_keys)
    if json:
        terminal.write_json(*map(_told, found))
    elif found:
        terminal.show_table(
            ["id", "tenant", "scopes", "streams", "label", "created", "revoked"],
            [
                (
                    key.id,
                    "* (all)" if key.tenant_id == ALL_TENANTS else escape(key.tenant_id),
                    " ".join(key.scopes),
                    "all" if key.streams is None else escape(" ".join(key.streams)),
                    escape(key.label),
                    f"{key.created_at:%Y-%m-%d %H:%M}",
                    f"[red]{key.revoked_at:%Y-%m-%d %H:%M}[/]" if key.revoked_at else "",
                )
                for key in found
            ],
        )
    else:
        terminal.say(
            "No keys: any request from this machine is accepted, and none from others. `tidelock keys create` "
            "creates the first."
        )


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="ID of the key, as shown by `keys list`.")],
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Revoke a key. Running servers refuse it at once.

    [dim]tidelock keys revoke key_7f3a9c1e04b2[/]
    """
    from tidelock.ledger.apikeys import revoke_key

    settings = read_settings(config, data=data, database_url=database_url)
    with found_ledger(settings) as database:
        done = asked(database, _NAME, lambda each: revoke_key(each, key_id))
    if not done:
        raise NotFound(f"there is no active key {key_id}; `tidelock keys list` shows them")
    if json:
        terminal.write_json({"id": key_id, "revoked": True})
    else:
        terminal.show(f"{escape(key_id)} is revoked.")


def _told(key: ApiKey) -> dict[str, object]:
    return {
        "id": key.id,
        "tenantId": key.tenant_id,
        "scopes": key.scopes,
        "streams": key.streams,
        "label": key.label,
        "createdAt": key.created_at,
        "revokedAt": key.revoked_at,
    }
