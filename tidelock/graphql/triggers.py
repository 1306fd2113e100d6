"""Triggers in GraphQL: `create_trigger`, `delete_trigger` and `triggers`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from graphql import (
    GraphQLArgument,
    GraphQLBoolean,
    GraphQLField,
    GraphQLList,
    GraphQLNonNull,
    GraphQLObjectType,
    GraphQLString,
)

from tidelock.graphql.execution import Answering
from tidelock.graphql.fields import CallField
from tidelock.graphql.schema import BIGINT, JSON, Further
from tidelock.http.access import Grant
from tidelock.triggers.admin import TriggerAdmin
from tidelock.triggers.drafts import Draft

_LIST_MAX = 10_000
#: member of the type -> that of the form
_MEMBERS = {
    "name": "name",
    "tenant_id": "tenantId",
    "table": "table",
    "match": "match",
    "unmatch": "unmatch",
    "webhook": "webhook",
    "enabled": "enabled",
    "snapshot": "snapshot",
    "created_sequence": "createdSequence",
    "secrets": "secrets",
    # By their names elsewhere, in addition to those in the style of columns.
    "tenantId": "tenantId",
    "createdSequence": "createdSequence",
}

# Numbers of filters are exact, and stay numbers.
_encode = msgspec.json.Encoder(decimal_format="number").encode


def trigger_fields() -> Further:
    """The fields that a schema has for triggers."""
    text, truth = GraphQLNonNull(GraphQLString), GraphQLNonNull(GraphQLBoolean)
    texts = GraphQLList(text)
    type_ = GraphQLObjectType(
        "trigger",
        {
            "name": GraphQLField(text),
            "tenant_id": GraphQLField(text),
            "table": GraphQLField(text),
            "match": GraphQLField(GraphQLNonNull(JSON)),
            "unmatch": GraphQLField(JSON),
            "webhook": GraphQLField(text),
            "enabled": GraphQLField(truth),
            "snapshot": GraphQLField(truth),
            "created_sequence": GraphQLField(GraphQLNonNull(BIGINT)),
            "secrets": GraphQLField(texts, description="Generated secrets; shown only once."),
            "tenantId": GraphQLField(text, description="As tenant_id."),
            "createdSequence": GraphQLField(GraphQLNonNull(BIGINT), description="As created_sequence."),
        },
        description="Sends webhooks when a row enters or leaves a condition.",
    )
    arguments: dict[str, Any] = {
        "name": text,
        "table": text,
        "match": GraphQLNonNull(JSON),
        "unmatch": JSON,
        "webhook": text,
        "secrets": texts,
        "enabled": GraphQLBoolean,
        "snapshot": GraphQLBoolean,
        "tenant_id": GraphQLString,
    }
    create = GraphQLField(
        GraphQLNonNull(type_),
        {name: GraphQLArgument(given) for name, given in arguments.items()},
        description="Make one.",
    )
    delete = GraphQLField(type_, {"name": GraphQLArgument(text)}, description="Delete a trigger; returns it.")
    listed = GraphQLField(GraphQLNonNull(GraphQLList(GraphQLNonNull(type_))), description="All triggers, by name.")
    return Further({"triggers": listed}, {"create_trigger": create, "delete_trigger": delete})


def answering_triggers(admin: TriggerAdmin, grant: Grant) -> Answering:
    """The handler of these fields, for clients with access."""

    async def answer(call: CallField) -> bytes:
        grant.need("triggers")
        if call.asked == "create_trigger":
            return _shown(await admin.make(_draft(call.arguments), grant.reads(call.arguments.get("tenant_id"))), call)
        if call.asked == "delete_trigger":
            return _shown((await admin.end(call.arguments["name"], grant.reads(None))).form(), call)
        found = await admin.page(grant.reads(None), _LIST_MAX)
        return b"[" + b",".join(_shown(each.form(), call) for each in found) + b"]"

    return answer


def _draft(given: Mapping[str, Any]) -> Draft:
    optional = {name: given[name] for name in ("enabled", "snapshot") if given.get(name) is not None}
    return Draft(
        name=given["name"],
        table=given["table"],
        match=msgspec.Raw(_encode(given["match"])),
        unmatch=msgspec.Raw(b"" if given.get("unmatch") is None else _encode(given["unmatch"])),
        webhook=given["webhook"],
        secrets=given.get("secrets"),
        **optional,
    )


def _shown(form: Mapping[str, Any], call: CallField) -> bytes:
    """The selection of a trigger, in GraphQL's forms."""
    members: dict[str, Any] = {}
    for alias, member in call.shown.items():
        name = _MEMBERS.get(member)
        value = form.get(name) if name is not None else "trigger"
        members[alias] = str(value) if name == "createdSequence" else value
    return _encode(members)
