"""Fields, buttons and questions, in one look."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from nicegui import ui

from tidelock.console.icons import svg

Act = Callable[[], Awaitable[Any] | None]

Chosen = Callable[[str], Awaitable[Any] | None]


def field(label: str, value: str = "", *, hint: str = "", act: Act | None = None, wide: bool = False) -> ui.input:
    """A line of text. `act` is called shortly after the last keystroke."""
    made = ui.input(label, value=value, placeholder=hint).props("outlined dense clearable debounce=350")
    made.props('autocomplete="off" spellcheck="false"').classes("tl-field" + (" tl-field-wide" if wide else ""))
    if act is not None:
        made.on_value_change(lambda _: act())
    return made


def area(label: str, value: str = "", *, hint: str = "") -> ui.textarea:
    """Several lines of code."""
    made = ui.textarea(value=value, placeholder=hint)
    made.props(f'outlined spellcheck=false input-class=tl-mono aria-label="{label}"').classes("tl-area tl-area-code")
    return made


def choice(
    label: str, options: Sequence[str] | dict[str, str], value: str | None = None, *, act: Act | None = None
) -> ui.select:
    """A choice of one."""
    made = ui.select(options if isinstance(options, dict) else list(options), label=label, value=value)
    made.props("outlined dense options-dense").classes("tl-field")
    if act is not None:
        made.on_value_change(lambda _: act())
    return made


def picker(label: str, options: Sequence[str], value: str, *, act: Act) -> ui.select:
    """A choice of one known value, or any other that is typed."""
    known = list(dict.fromkeys([*options, *([value] if value else [])]))
    made = ui.select(
        known, label=label, value=value or None, with_input=True, new_value_mode="add-unique", clearable=True
    )
    made.props("outlined dense options-dense").classes("tl-field tl-picker")
    made.on_value_change(lambda _: act())
    return made


def instant_field(label: str, value: str, *, act: Act) -> ui.input:
    """A minute of a day, as the browser asks for it. Its text is read as UTC."""
    made = ui.input(label, value=value[:16]).props('type="datetime-local" outlined dense clearable stack-label')
    made.props("debounce=350").classes("tl-field tl-instant")
    made.on_value_change(lambda _: act())
    return made


def whole_instant(text: str | None) -> str | None:
    """The value of such a field for the API: `2026-01-31T23:59` is that minute in UTC."""
    if not text:
        return None
    return text if text.endswith("Z") else f"{text}:00Z" if len(text) == len("2026-01-31T23:59") else f"{text}Z"


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

    def show(self, visible: bool) -> None:
        self._button.set_visibility(visible)


class Segments:
    """A row of buttons, one of them pressed."""

    def __init__(self, options: Mapping[str, str], value: str, act: Chosen, *, label: str) -> None:
        self.value = value
        self._act = act
        self._buttons: dict[str, ui.element] = {}
        with ui.element("div").classes("tl-segments").props(f'role="group" aria-label="{label}"'):
            for name, text in options.items():
                with ui.element("button").classes("tl-segment").props('type="button"') as made:
                    ui.label(text)
                made.on("click", partial(self._press, name))
                self._buttons[name] = made
        self.show(value)

    def show(self, value: str) -> None:
        """Press one without notifying listeners."""
        self.value = value
        for name, made in self._buttons.items():
            made.classes(add="tl-here") if name == value else made.classes(remove="tl-here")
            made.props(f'aria-pressed="{"true" if name == value else "false"}"')

    def _press(self, name: str) -> Awaitable[Any] | None:
        if name == self.value:
            return None
        self.show(name)
        return self._act(name)


async def ask(title: str, text: str, yes: str, *, danger: bool = False) -> bool:
    """Ask the visitor to confirm."""
    with ui.dialog() as dialog, ui.card().classes("tl-ask").props("flat"):
        ui.label(title).classes("tl-ask-title")
        ui.label(text).classes("tl-about")
        with ui.element("div").classes("tl-ask-end"):
            button("Cancel", lambda: dialog.submit(False))
            button(yes, lambda: dialog.submit(True), primary=not danger, danger=danger)
    meant = await dialog
    dialog.delete()
    return meant is True
