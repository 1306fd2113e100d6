"""Small parts: panels, figures, chips, code, and empty states."""

from __future__ import annotations

from typing import Any, Literal

from nicegui import ui

from tidelock.console.exact import write
from tidelock.console.icons import svg

#: what a colour means
Tone = Literal["calm", "good", "warn", "bad", "plain"]


def panel(title: str | None = None, about: str | None = None, *, classes: str = "") -> ui.element:
    """A surface with a heading; elements created inside `with` are its content."""
    with ui.element("section").classes(f"tl-panel {classes}"):
        if title is not None:
            with ui.element("div").classes("tl-panel-head"):
                ui.html(_escaped(title), sanitize=False, tag="h2")
                if about:
                    ui.label(about).classes("tl-about")
        return ui.element("div").classes("tl-panel-body")


def row(classes: str = "") -> ui.element:
    """Parts side by side, stacked on narrow screens."""
    return ui.element("div").classes(f"tl-row {classes}")


def grid(classes: str = "") -> ui.element:
    """Cards of one size, as many per line as fit."""
    return ui.element("div").classes(f"tl-grid {classes}")


class Stat:
    """A figure with its name and a note."""

    def __init__(self, name: str, figure: str = "–", note: str = "", tone: Tone = "plain") -> None:
        with ui.element("div").classes("tl-stat") as self._card:
            ui.label(name).classes("tl-stat-name")
            self._figure = ui.label(figure).classes("tl-stat-figure")
            self._note = ui.label(note).classes("tl-stat-note")
        self._tone: Tone = "plain"
        self.set(figure, note, tone)

    def set(self, figure: str, note: str | None = None, tone: Tone | None = None) -> None:
        self._figure.set_text(figure)
        if note is not None:
            self._note.set_text(note)
        if tone is not None and tone != self._tone:
            self._card.classes(remove=f"tl-{self._tone}", add=f"tl-{tone}")
            self._tone = tone


def stat(name: str, figure: str = "–", note: str = "", tone: Tone = "plain") -> Stat:
    return Stat(name, figure, note, tone)


def chip(text: str, tone: Tone = "plain", *, title: str | None = None) -> ui.label:
    """A word with a meaning: a verdict, a state."""
    made = ui.label(text).classes(f"tl-chip tl-{tone}")
    if title is not None:
        made._props["title"] = title
    return made


def empty(icon: str, title: str, text: str, command: str | None = None) -> None:
    """An empty state: why, and what to do."""
    with ui.element("div").classes("tl-empty"):
        ui.html(svg(icon), sanitize=False)
        ui.label(title).classes("tl-empty-title")
        ui.label(text).classes("tl-empty-text")
        if command is not None:
            code_block(command)


def code_block(text: str) -> ui.element:
    """Text to read and to copy."""
    with ui.element("div").classes("tl-code") as block:
        ui.html(_escaped(text), sanitize=False, tag="pre")
        with ui.element("button").classes("tl-copy").props('data-tl-copy aria-label="Copy" title="Copy"'):
            ui.html(svg("copy"), sanitize=False)
    return block


def json_block(value: Any) -> ui.element:
    """Indented JSON."""
    return code_block(write(value, "  "))


def facts(pairs: list[tuple[str, str | None]]) -> None:
    """Names and values, one pair a line; a dash for None."""
    with ui.element("dl").classes("tl-facts"):
        for name, value in pairs:
            ui.html(_escaped(name), sanitize=False, tag="dt")
            shown = "–" if value is None else value
            ui.html(_escaped(shown), sanitize=False, tag="dd").classes("tl-none" if value is None else "")


def link(text: str, href: str) -> ui.element:
    with ui.element("a").classes("tl-link") as made:
        made._props["href"] = href
        ui.label(text)
    return made


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
