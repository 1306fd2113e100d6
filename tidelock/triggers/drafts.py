"""Drafts: requested triggers, checked against the existing tables."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import msgspec

from tidelock.errors import InvalidDefinition, InvalidJson, NotFound, RequestError
from tidelock.ingest.wire import NAME_CHARACTERS_MAX
from tidelock.model import ALL_TENANTS, CONTROL
from tidelock.tables import Table
from tidelock.triggers.addresses import check_url
from tidelock.triggers.definition import Trigger, check_name
from tidelock.triggers.signatures import check_secrets
from tidelock.views.catalog import TableCatalog, silent_tables
from tidelock.where import InvalidFilter

_ABSENT = msgspec.Raw(b"")
_FIELD = re.compile(r"at `\$\.([A-Za-z]+)|field `([A-Za-z]+)`")


class Draft(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A request to create a trigger."""

    name: str
    table: str
    match: msgspec.Raw
    webhook: str
    unmatch: msgspec.Raw = _ABSENT
    enabled: bool = True
    snapshot: bool = False
    tenant_id: str | None = None
    secrets: list[str] | None = None
    secret: str | None = None


class Patch(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A request to change one: absent members stay as they are."""

    table: str | msgspec.UnsetType = msgspec.UNSET
    match: msgspec.Raw = _ABSENT
    webhook: str | msgspec.UnsetType = msgspec.UNSET
    unmatch: msgspec.Raw = _ABSENT
    enabled: bool | msgspec.UnsetType = msgspec.UNSET
    snapshot: bool | msgspec.UnsetType = msgspec.UNSET
    secrets: list[str] | None = None
    secret: str | None = None


class Redelivery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A request to redeliver: some events, or all dead ones."""

    event_ids: list[str] | None = None


def read_body(body: bytes, kind: type[Any]) -> Any:
    """A request's body. Raises InvalidJson, or InvalidDefinition that names the field."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        found = _FIELD.search(str(error))
        raise InvalidDefinition(str(error), field=(found[1] or found[2]) if found else None) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidJson(f"the body is not JSON: {error}") from None


def new_trigger(draft: Draft, tenant_id: str, catalog: TableCatalog, *, allow_private: bool) -> Trigger:
    """The trigger described by a draft. Raises InvalidDefinition, InvalidFilter."""
    with _Definition():
        check_name(draft.name)
    _check_tenant(tenant_id)
    trigger = Trigger(
        name=draft.name,
        tenant_id=tenant_id,
        table=draft.table,
        match=_text(draft.match) or "null",
        unmatch=_text(draft.unmatch),
        webhook=draft.webhook,
        enabled=draft.enabled,
        snapshot=draft.snapshot,
    )
    return checked(trigger, catalog, allow_private=allow_private)


def changed_trigger(trigger: Trigger, patch: Patch, catalog: TableCatalog, *, allow_private: bool) -> Trigger:
    """The patched trigger; the trigger itself if the patch changes nothing."""
    given: dict[str, Any] = {
        name: value
        for name in ("table", "webhook", "enabled", "snapshot")
        if (value := getattr(patch, name)) is not msgspec.UNSET
    }
    if bytes(patch.match):
        given["match"] = _text(patch.match) or "null"
    if bytes(patch.unmatch):
        given["unmatch"] = _text(patch.unmatch)
    changed = replace(trigger, **given)
    if changed == trigger:
        return trigger
    if given == {"enabled": False}:
        # Even if its table has changed meanwhile.
        return changed
    return checked(changed, catalog, allow_private=allow_private)


def checked(trigger: Trigger, catalog: TableCatalog, *, allow_private: bool) -> Trigger:
    """The trigger with the columns of its table, if it is valid."""
    with _Definition():
        check_url(trigger.webhook, allow_private=allow_private)
    trigger = replace(trigger, columns=_table(trigger.table, catalog).columns)
    for field in ("match", "unmatch"):
        try:
            _ = trigger.entering() if field == "match" else trigger.leaving()
        except InvalidFilter as error:
            place = f"{field}.{error.field}" if error.field else field
            raise InvalidFilter(f"{field}: {error.message}", field=place) from None
    return trigger


def given_secrets(draft: Draft | Patch) -> tuple[str, ...] | None:
    """The secrets in a request, newest first; None: it has none."""
    if draft.secret is not None and draft.secrets is not None:
        raise InvalidDefinition("secret is an alias of secrets; give only one of them", field="secret")
    secrets = [draft.secret] if draft.secret is not None else draft.secrets
    if secrets is None:
        return None
    with _Definition():
        return check_secrets(secrets)


def _check_tenant(tenant_id: str) -> None:
    plain = not any(character == "\0" or 0xD800 <= ord(character) <= 0xDFFF for character in tenant_id)
    if not 1 <= len(tenant_id) <= NAME_CHARACTERS_MAX or not plain or tenant_id in (CONTROL, ALL_TENANTS):
        raise InvalidDefinition("this is not a valid tenant name", field="tenantId")


def _table(name: str, catalog: TableCatalog) -> Table:
    try:
        table = catalog.table(name)
    except NotFound as error:
        raise InvalidDefinition(error.message, field="table") from None
    if name in silent_tables(catalog):
        raise InvalidDefinition(
            f"{name} is declared with live = false: its changes are not recorded, so a trigger would never fire",
            field="table",
        )
    return table


def _text(raw: msgspec.Raw) -> str | None:
    """JSON text; None if absent or null."""
    text = bytes(raw).decode()
    return None if text.strip() in ("", "null") else text


class _Definition:
    """An error in a part of a definition is an error of the definition."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RequestError) and not isinstance(error, InvalidDefinition):
            raise InvalidDefinition(error.message, field=error.field) from None
