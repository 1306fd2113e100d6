"""The form for a new trigger, and its secrets, which are shown once."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from nicegui import ui

from tidelock.console.api import ApiError
from tidelock.console.catalogue import columns_of, live_tables
from tidelock.console.filters import Unfit
from tidelock.console.frame import Visit
from tidelock.console.parts.forms import button, choice, field
from tidelock.console.parts.segments import Segments
from tidelock.console.parts.texts import code_block, empty, panel, row
from tidelock.console.parts.wheres import WhereField

Json = dict[str, Any]

_LEAVES = {"not": "it no longer matches", "own": "another condition is true"}


class TriggerForm:
    """Makes a trigger."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit

    async def show(self) -> None:
        tables = await live_tables(self._visit.api)
        if not tables:
            text = (
                "Tables come from streams with a key, meters and windows. Define one in tidelock.toml and start again."
            )
            empty("bolt", "There is no table to watch", text)
            return
        asked = self._visit.query.get("table", "")
        table = asked if asked in tables else tables[0]
        columns = await columns_of(self._visit.api, table)
        self._place = ui.element("div")
        with self._place, panel(), ui.element("div").classes("tl-form"):
            self._name = field("Name", hint="letters, digits, _ . -", wide=True)
            if self._visit.tenant is None:
                self._tenant = field("Tenant", "default", hint="whose rows it sees", wide=True)
            self._table = choice("Table", tables, table, act=self._choose)
            with ui.element("div").classes("tl-form-line"):
                ui.label("A row enters when").classes("tl-label")
                self._match = WhereField(columns, {}, self._checked, hint="Every row enters. Add a condition.")
            with ui.element("div").classes("tl-form-line"):
                ui.label("and leaves when").classes("tl-label")
                self._leaves = Segments(_LEAVES, "not", self._leave, label="A row leaves")
                self._unmatch_place = ui.element("div")
                with self._unmatch_place:
                    self._unmatch = WhereField(columns, {}, self._checked, hint="Add a condition.")
                self._unmatch_place.set_visibility(False)
            self._webhook = field("Webhook", hint="https://example.com/hook", wide=True)
            self._secret = field("Secret", hint="whsec_…  One is made for you when this is empty", wide=True)
            self._snapshot = ui.switch("Tell of rows that match already").props("dense")
            self._trouble = ui.label("").classes("tl-bad-text").props('role="alert"')
            with row("tl-tools"):
                button("Make the trigger", self._make, primary=True)
                button("Cancel", lambda: ui.navigate.to("/triggers"))

    async def _choose(self) -> None:
        columns = await columns_of(self._visit.api, self._table.value)
        self._match.use(columns)
        self._unmatch.use(columns)

    def _leave(self, how: str) -> None:
        self._unmatch_place.set_visibility(how == "own")

    def _checked(self) -> None:
        for where in (self._match, self._unmatch):
            try:
                where.where()
                where.tell(None)
            except Unfit as unfit:
                where.tell(unfit)

    async def _make(self) -> None:
        self._trouble.set_text("")
        try:
            made = await self._visit.api.send("POST", "/v1/triggers", self._draft())
        except (ApiError, Unfit) as error:
            self._trouble.set_text(str(error))
            return
        self._done(made)

    def _draft(self) -> Json:
        draft: Json = {
            "name": (self._name.value or "").strip(),
            "table": self._table.value,
            "match": self._match.where(),
            "webhook": (self._webhook.value or "").strip(),
            "snapshot": bool(self._snapshot.value),
        }
        if self._leaves.value == "own":
            draft["unmatch"] = self._unmatch.where()
        if self._visit.tenant is None and (self._tenant.value or "").strip():
            draft["tenantId"] = self._tenant.value.strip()
        if (self._secret.value or "").strip():
            draft["secrets"] = [self._secret.value.strip()]
        return draft

    def _done(self, made: Json) -> None:
        self._place.clear()
        with self._place, panel(), ui.element("div").classes("tl-form"):
            ui.label(f"{made['name']} is on").classes("tl-name")
            ui.label(
                f"It sees what changes in {made['table']} after sequence {made['createdSequence']:,}, which is its own."
            ).classes("tl-about")
            if made.get("secrets"):
                with ui.element("div").classes("tl-secret"):
                    ui.label("The secret is shown this once. The receiver verifies signatures with it.")
                    block = code_block("\n".join(made["secrets"]))
                    block.props('data-is="secret"')
            with row("tl-tools"):
                href = f"/triggers/{quote(made['name'], safe='')}"
                button("See its deliveries", lambda: ui.navigate.to(href), primary=True)
