"""Asking before something is done that cannot be undone."""

from __future__ import annotations

from nicegui import ui

from tidelock.console.parts.forms import button


async def ask(title: str, text: str, yes: str, *, danger: bool = False) -> bool:
    """Whether the visitor means it."""
    with ui.dialog() as dialog, ui.card().classes("tl-ask").props("flat"):
        ui.label(title).classes("tl-ask-title")
        ui.label(text).classes("tl-about")
        with ui.element("div").classes("tl-ask-end"):
            button("Cancel", lambda: dialog.submit(False))
            button(yes, lambda: dialog.submit(True), primary=not danger, danger=danger)
    meant = await dialog
    dialog.delete()
    return meant is True
