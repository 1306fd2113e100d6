"""Tables of rows as the API gives them, a page at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from nicegui import ui

from tidelock.console.icons import svg

#: text as it is; words in as many lines as they take; figures, right-aligned; code; an instant, shortened and whole on
#: hover; a chip
Kind = Literal["text", "words", "number", "mono", "time", "chip"]

Row = dict[str, Any]

# One template for every table. A row with `_href` leads somewhere, by a click anywhere on it and as a link in its
# first cell; `_tone` tints a row, `<column>_tone` a chip, `<column>_title` is what a cell says when pointed at.
_BODY = r"""
<q-tr :props="props" :class="[props.row._tone && 'tl-' + props.row._tone, props.row._href && 'tl-leads']"
      :data-href="props.row._href">
  <q-td v-for="(col, at) in props.cols" :key="col.name" :props="props" :class="['tl-td-' + col.kind, col.classes]"
        :title="props.row[col.name + '_title']">
    <span v-if="col.value === null || col.value === undefined || col.value === ''" class="tl-none">–</span>
    <span v-else-if="col.kind === 'chip'" class="tl-chip" :class="'tl-' + (props.row[col.name + '_tone'] || 'plain')"
      >{{ col.value }}</span>
    <a v-else-if="at === 0 && props.row._href" :href="props.row._href">{{ col.value }}</a>
    <span v-else>{{ col.value }}</span>
  </q-td>
</q-tr>
"""

NOTHING = '<div class="tl-nothing">{{ props.message }}</div>'


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    name: str
    label: str
    kind: Kind = "text"
    #: left out where there is little room
    wide: bool = False


def rows_table(columns: Sequence[Column], rows: list[Row], *, key: str, nothing: str = "Nothing here.") -> ui.table:
    """A table; to change it, set its `rows`. `key` names the column that tells rows apart."""
    described = [
        {
            "name": column.name,
            "label": column.label,
            "field": column.name,
            "kind": column.kind,
            "align": "right" if column.kind == "number" else "left",
            "classes": "tl-wide" if column.wide else "",
            "headerClasses": "tl-wide" if column.wide else "",
        }
        for column in columns
    ]
    made = ui.table(rows=rows, columns=described, row_key=key, pagination=0)
    made.props("flat dense hide-pagination wrap-cells=false").classes("tl-table")
    made.add_slot("body", _BODY)
    made.add_slot("no-data", NOTHING)
    say_nothing(made, nothing)
    return made


def say_nothing(table: ui.table, text: str) -> None:
    """What a table says while it has no rows."""
    if table._props.get("no-data-label") != text:
        table._props["no-data-label"] = text
        table.update()


class Pager:
    """Older and newer, or next and previous, with what is shown between them."""

    def __init__(
        self, back: Callable[[], Awaitable[None]], on: Callable[[], Awaitable[None]], labels: tuple[str, str]
    ) -> None:
        with ui.element("div").classes("tl-pager"):
            self._back = _button(labels[0], "left", back, leading=True)
            self._text = ui.label("").classes("tl-pager-text")
            self._on = _button(labels[1], "right", on, leading=False)
        self.set("", back=False, on=False)

    def set(self, text: str, *, back: bool, on: bool) -> None:
        self._text.set_text(text)
        for button, enabled in ((self._back, back), (self._on, on)):
            button.props(remove="disabled") if enabled else button.props("disabled")


def pager(
    back: Callable[[], Awaitable[None]],
    on: Callable[[], Awaitable[None]],
    labels: tuple[str, str] = ("Previous", "Next"),
) -> Pager:
    return Pager(back, on, labels)


def _button(text: str, icon: str, act: Callable[[], Awaitable[None]], *, leading: bool) -> ui.element:
    with ui.element("button").classes("tl-button") as made:
        if leading:
            ui.html(svg(icon), sanitize=False)
        ui.label(text)
        if not leading:
            ui.html(svg(icon), sanitize=False)
    made.on("click", act)
    return made
