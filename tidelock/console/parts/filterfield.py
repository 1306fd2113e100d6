"""The field for a filter: a form for most filters, and JSON for all."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from nicegui import ui

from tidelock.console.api import Columns
from tidelock.console.filters import OPERATORS, Built, FormCondition, Json, Unfilled, Unfit, built_of, read_where
from tidelock.console.icons import svg
from tidelock.console.parts.forms import Segments, button, choice, field

# With more conditions a form is unusable.
_CONDITIONS_MAX = 20
_JOINED = {"all": "all are true", "any": "any is true"}
_MISSING = {"yes": "yes", "no": "no"}


class WhereField:
    """A filter on the columns of a table. `changed` is called when it changes."""

    def __init__(self, columns: Columns, where: Json, changed: Callable[[], Any], *, hint: str) -> None:
        self._columns = columns
        self._changed = changed
        self._hint = hint
        built = built_of(where)
        if built is not None and self._unknown(built):
            built = None
        self._conditions: list[FormCondition] = list(built.conditions) if built else []
        self._any = built.any if built else False
        self._text = _pretty(where)
        with ui.element("div").classes("tl-where"):
            with ui.element("div").classes("tl-where-head"):
                self._mode = Segments(
                    {"form": "Form", "json": "JSON"}, "json" if built is None else "form", self._switch, label="Filter"
                )
                self._trouble = ui.label("").classes("tl-where-trouble")
            self._place = ui.element("div").classes("tl-where-body")
        self._draw()

    def where(self) -> Json:
        """The filter. Raises Unfit."""
        if self._mode.value == "json":
            where = read_where(self._text)
            built = built_of(where)
            if built is not None and (unknown := self._unknown(built)):
                raise Unfit(unknown)
            return where
        return Built(self._conditions, self._any).where(self._columns.types)

    def use(self, columns: Columns) -> None:
        """Switch to another table and clear the filter."""
        self._columns = columns
        self._conditions, self._any, self._text = [], False, "{}"
        self._draw()

    def tell(self, trouble: Unfit | None) -> None:
        """Show what is wrong with it, or clear that."""
        self._trouble.set_text("" if trouble is None else str(trouble))
        bad = trouble is not None and not isinstance(trouble, Unfilled)
        self._trouble.classes(add="tl-bad") if bad else self._trouble.classes(remove="tl-bad")

    def _switch(self, mode: str) -> None:
        try:
            if mode == "json":
                self._text = _pretty(Built(self._conditions, self._any).where(self._columns.types))
            else:
                self._take(read_where(self._text))
        except Unfit as unfit:
            self._mode.show("form" if mode == "json" else "json")
            self.tell(unfit)
            return
        self._draw()
        self._changed()

    def _take(self, where: Json) -> None:
        built = built_of(where)
        if built is None:
            raise Unfit("this filter is too complex for the form")
        if unknown := self._unknown(built):
            raise Unfit(unknown)
        self._conditions, self._any = list(built.conditions), built.any

    def _unknown(self, built: Built) -> str:
        """The message about columns that the table does not have; empty if it has all."""
        unknown = [one.column for one in built.conditions if one.column not in self._columns.types]
        return f"there is no column {unknown[0]}; available: {', '.join(self._columns.types)}" if unknown else ""

    def _draw(self) -> None:
        self._place.clear()
        with self._place:
            if self._mode.value == "json":
                self._draw_text()
            else:
                self._draw_form()

    def _draw_text(self) -> None:
        area = ui.textarea(value=self._text).props(
            "outlined autogrow debounce=350 spellcheck=false input-class=tl-mono"
        )
        area.classes("tl-area").props('aria-label="Filter as JSON"')
        area.on_value_change(lambda event: self._write(event.value or ""))

    def _draw_form(self) -> None:
        if not self._conditions:
            ui.label(self._hint).classes("tl-about")
        for at, condition in enumerate(self._conditions):
            self._draw_condition(at, condition)
        with ui.element("div").classes("tl-row tl-tools"):
            if len(self._conditions) < _CONDITIONS_MAX:
                button("Add a condition", self._add, icon="plus")
            if len(self._conditions) > 1:
                joined = choice("Rows where", _JOINED, "any" if self._any else "all")
                joined.on_value_change(lambda event: self._join(event.value))

    def _draw_condition(self, at: int, condition: FormCondition) -> None:
        type_ = self._columns.types[condition.column]
        with ui.element("div").classes("tl-condition"):
            column = choice("Column", list(self._columns.types), condition.column)
            column.on_value_change(lambda event: self._set(at, FormCondition(event.value), drawn=True))
            operators = {"_is_null": OPERATORS["_is_null"]} if type_ == "json" else OPERATORS
            operator = choice("Is", operators, condition.operator if condition.operator in operators else "_is_null")
            operator.on_value_change(lambda event: self._operate(at, event.value))
            self._draw_value(at, condition, type_)
            remove = ui.element("button").classes("tl-round").props('type="button" aria-label="Remove" title="Remove"')
            with remove:
                ui.html(svg("close"), sanitize=False)
            remove.on("click", partial(self._remove, at))

    def _draw_value(self, at: int, condition: FormCondition, type_: str) -> None:
        made: Any
        if condition.operator == "_is_null" or type_ == "json":
            made = choice("", _MISSING, condition.value if condition.value in _MISSING else "yes")
        elif type_ == "Boolean" and condition.operator in ("_eq", "_neq"):
            made = choice("Value", ["true", "false"], condition.value or None)
        else:
            several = condition.operator in ("_in", "_nin")
            hint = "a, b, c" if several else self._columns.declared[condition.column]
            made = field("Values" if several else "Value", condition.value, hint=hint)
        made.on_value_change(lambda event: self._set(at, replace(self._conditions[at], value=event.value or "")))

    def _add(self) -> None:
        first = next((name for name in self._columns.types if name != "tenant_id"), None)
        if first is not None:
            self._conditions.append(FormCondition(first, "_is_null" if self._columns.types[first] == "json" else "_eq"))
            self._draw()
            self._changed()

    def _remove(self, at: int) -> None:
        del self._conditions[at]
        self._draw()
        self._changed()

    def _operate(self, at: int, operator: str) -> None:
        before = self._conditions[at]
        # Only these operators take another kind of value.
        kept = "" if "_is_null" in (operator, before.operator) else before.value
        self._set(at, replace(before, operator=operator, value=kept), drawn=True)

    def _set(self, at: int, condition: FormCondition, *, drawn: bool = False) -> None:
        if self._columns.types[condition.column] == "json":
            condition = replace(condition, operator="_is_null")
        self._conditions[at] = condition
        if drawn:
            self._draw()
        self._changed()

    def _join(self, joined: str) -> None:
        self._any = joined == "any"
        self._changed()

    def _write(self, text: str) -> None:
        self._text = text
        self._changed()


def _pretty(where: Json) -> str:
    return json.dumps(where, indent=2, ensure_ascii=False)
