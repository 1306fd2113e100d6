"""Fields and buttons, in one look."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from nicegui import ui

from tidelock.console.icons import svg

Act = Callable[[], Awaitable[Any] | None]


def field(label: str, value: str = "", *, hint: str = "", act: Act | None = None, wide: bool = False) -> ui.input:
    """A line of text. `act` is called a moment after the last key."""
    made = ui.input(label, value=value, placeholder=hint).props("outlined dense clearable debounce=350")
    made.props('autocomplete="off" spellcheck="false"').classes("tl-field" + (" tl-field-wide" if wide else ""))
    if act is not None:
        made.on_value_change(lambda _: act())
    return made


def choice(
    label: str, options: Sequence[str] | dict[str, str], value: str | None = None, *, act: Act | None = None
) -> ui.select:
    """One of several."""
    made = ui.select(options if isinstance(options, dict) else list(options), label=label, value=value)
    made.props("outlined dense options-dense").classes("tl-field")
    if act is not None:
        made.on_value_change(lambda _: act())
    return made


def button(text: str, act: Act, *, icon: str | None = None, primary: bool = False, danger: bool = False) -> Button:
    return Button(text, act, icon, "tl-primary" if primary else "tl-danger" if danger else "")


class Button:
    """A button whose text and icon may change."""

    def __init__(self, text: str, act: Act, icon: str | None, classes: str) -> None:
        with ui.element("button").classes(f"tl-button {classes}") as self._button:
            self._icon = ui.html(svg(icon) if icon else "", sanitize=False)
            self._label = ui.label(text)
        self._button.on("click", lambda: act())

    def set(self, text: str, icon: str | None = None, *, enabled: bool = True) -> None:
        self._label.set_text(text)
        self._icon.set_content(svg(icon) if icon else "")
        self._button.props(remove="disabled") if enabled else self._button.props("disabled")
