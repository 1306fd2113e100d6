"""One of a few, all of them in sight."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from nicegui import ui

Chosen = Callable[[str], Awaitable[Any] | None]


class Segments:
    """Buttons of which one is pressed."""

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
        """Press one without a word to whoever listens."""
        self.value = value
        for name, made in self._buttons.items():
            made.classes(add="tl-here") if name == value else made.classes(remove="tl-here")
            made.props(f'aria-pressed="{"true" if name == value else "false"}"')

    def _press(self, name: str) -> Awaitable[Any] | None:
        if name == self.value:
            return None
        self.show(name)
        return self._act(name)
