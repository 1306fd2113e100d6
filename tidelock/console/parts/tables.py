"""Tables of rows from the API, page by page, forwards and backwards by its cursors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from nicegui import ui
from nicegui.events import GenericEventArguments

from tidelock.console.exact import write
from tidelock.console.frame import Visit
from tidelock.console.icons import svg
from tidelock.console.parts.numbers import figure
from tidelock.console.parts.times import clock_time
from tidelock.sections import number_of

#: plain text; text that wraps; figures, right-aligned; code; an instant, shortened, in full on hover; a chip
Kind = Literal["text", "words", "number", "mono", "time", "chip"]

Row = dict[str, Any]

# One template for every table. A row with `_href` is a link, by a click anywhere and in its first cell;
# `<column>_href` links a cell elsewhere; `_tone` tints a row, `<column>_tone` a chip; `<column>_title` is the tooltip
# of a cell.
_BODY = r"""
<q-tr :props="props" :class="[props.row._tone && 'tl-' + props.row._tone, props.row._href && 'tl-leads']"
      :data-href="props.row._href">
  <q-td v-for="(col, at) in props.cols" :key="col.name" :props="props" :class="['tl-td-' + col.kind, col.classes]"
        :title="props.row[col.name + '_title']">
    <span v-if="col.value === null || col.value === undefined || col.value === ''" class="tl-none">–</span>
    <span v-else-if="col.kind === 'chip'" class="tl-chip" :class="'tl-' + (props.row[col.name + '_tone'] || 'plain')"
      >{{ col.value }}</span>
    <a v-else-if="props.row[col.name + '_href']" class="tl-elsewhere" :href="props.row[col.name + '_href']"
      >{{ col.value }}</a>
    <a v-else-if="at === 0 && props.row._href" :href="props.row._href">{{ col.value }}</a>
    <span v-else>{{ col.value }}</span>
  </q-td>
</q-tr>
"""

_MANY = 10**9

NOTHING = '<div class="tl-nothing">{{ props.message }}</div>'


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    name: str
    label: str
    kind: Kind = "text"
    #: hidden on narrow screens
    wide: bool = False
    #: its heading sorts the list
    sorts: bool = False


#: how the values of a declared type are shown
_KINDS: dict[str, Kind] = {
    "int": "number",
    "bigint": "number",
    "double": "number",
    "decimal": "number",
    "timestamp": "time",
    "json": "mono",
}


def column_of(
    name: str, declared: str, *, wide: bool = False, sorts: bool = False, names: Collection[str] = ()
) -> Column:
    """The column of a table of the fold. Identifiers, such as ids and columns in `names`, are not figures."""
    kind = _KINDS.get(declared.partition("(")[0], "text")
    named = name == "id" or name.endswith("_id") or name in names
    return Column(name, name, "mono" if kind == "number" and named else kind, wide, sorts)


def cells(columns: Sequence[Column], item: dict[str, Any]) -> Row:
    """A row of a table of the fold as shown."""
    made: Row = {}
    for column in columns:
        if column.name not in item:
            continue
        value = item[column.name]
        if column.kind == "time" and value is not None:
            made[f"{column.name}_title"] = value
            value = clock_time(value)
        elif column.kind == "number":
            value = figure(value)
        elif isinstance(value, dict | list | bool | float):
            value = write(value)
        made[column.name] = value
    return made


def rows_table(
    columns: Sequence[Column],
    rows: list[Row],
    *,
    key: str,
    nothing: str = "Nothing here.",
    sort: tuple[str, bool] | None = None,
    sorted_by: Callable[[GenericEventArguments], Awaitable[None]] | None = None,
) -> ui.table:
    """A table; to change it, set its `rows`. `key` names the column that identifies rows.

    `sorted_by` is called with the requested order, if headings sort; `sort` is the initial order.
    """
    described = [
        {
            "name": column.name,
            "label": column.label,
            "field": column.name,
            "kind": column.kind,
            "align": "right" if column.kind == "number" else "left",
            "classes": "tl-wide" if column.wide else "",
            "headerClasses": "tl-wide" if column.wide else "",
            "sortable": column.sorts,
        }
        for column in columns
    ]
    name, descends = sort or (None, False)
    # Claiming more rows than there are makes the browser leave sorting to us.
    paging = {"rowsPerPage": 0, "rowsNumber": _MANY, "sortBy": name, "descending": descends}
    made = ui.table(rows=rows, columns=described, row_key=key, pagination=0 if sorted_by is None else paging)
    if sorted_by is not None:
        made.on("request", sorted_by)
        made.props("binary-state-sort")
    made.props("flat dense hide-pagination wrap-cells=false").classes("tl-table")
    made.add_slot("body", _BODY)
    made.add_slot("no-data", NOTHING)
    say_nothing(made, nothing)
    return made


def say_nothing(table: ui.table, text: str) -> None:
    """Set the text of a table without rows."""
    if table._props.get("no-data-label") != text:
        table._props["no-data-label"] = text
        table.update()


class Pager:
    """Two buttons, such as previous and next, with a text between them."""

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


class PageTurner:
    """The page of a list that is shown, and buttons for the others; each page is read from the API."""

    def __init__(self, visit: Visit, read: Callable[[], Awaitable[None]]) -> None:
        self._visit = visit
        self._read = read
        self._pages = _Cursors()

    @property
    def cursor(self) -> str | None:
        """The cursor of the page to read."""
        return self._pages.cursor

    @property
    def has_back(self) -> bool:
        return self._pages.has_back

    def draw(self, labels: tuple[str, str] = ("Previous", "Next")) -> None:
        """Draw the buttons here."""
        self._pager = pager(self._back, self._on, labels)

    def took(self, found: dict[str, Any]) -> None:
        """Record the page that was read."""
        pages = self._pages
        pages.take(found["next"])
        self._pager.set(pages.text(len(found["items"])), back=pages.has_back, on=pages.has_on)

    async def restart(self, *_: object) -> None:
        """Start another list."""
        self._pages.restart()
        await self._visit.tried(self._read)

    async def _back(self) -> None:
        self._pages.back()
        await self._visit.tried(self._read)

    async def _on(self) -> None:
        self._pages.on()
        await self._visit.tried(self._read)


class _Cursors:
    """The position in a list. The API gives only the next page, so earlier cursors are kept."""

    def __init__(self) -> None:
        self._cursors: list[str | None] = [None]
        self._next: str | None = None

    @property
    def cursor(self) -> str | None:
        """The cursor of the page to read."""
        return self._cursors[-1]

    @property
    def number(self) -> int:
        return len(self._cursors)

    @property
    def has_back(self) -> bool:
        return len(self._cursors) > 1

    @property
    def has_on(self) -> bool:
        return self._next is not None

    def take(self, following: str | None) -> None:
        """Record the cursor of the next page."""
        self._next = following

    def on(self) -> None:
        if self._next is not None:
            self._cursors.append(self._next)
            self._next = None

    def back(self) -> None:
        if self.has_back:
            self._cursors.pop()

    def restart(self) -> None:
        """Start another list."""
        self._cursors = [None]
        self._next = None

    def text(self, rows: int) -> str:
        """The text between the buttons."""
        if not self.has_back and not self.has_on:
            return "" if rows == 0 else number_of(rows, "row")
        return f"page {self.number}"
