"""Shares: how much of a whole each kind is, as a bar and in figures."""

from __future__ import annotations

from collections.abc import Sequence

from nicegui import ui


class Shares:
    """Kinds with a colour each; the figures come by `set`."""

    def __init__(self, kinds: Sequence[tuple[str, str]]) -> None:
        """Each kind is its name and the token of its colour."""
        with ui.element("div").classes("tl-shares"):
            with ui.element("div").classes("tl-shares-bar"):
                self._parts = [ui.element("span").style(f"background: var(--{token})") for _, token in kinds]
            self._figures: list[ui.label] = []
            self._percents: list[ui.label] = []
            for name, token in kinds:
                with ui.element("div").classes("tl-share"):
                    ui.element("i").style(f"background: var(--{token})")
                    ui.label(name)
                    self._percents.append(ui.label("").classes("tl-share-percent"))
                    self._figures.append(ui.label("–").classes("tl-share-figure"))

    def set(self, figures: Sequence[int]) -> None:
        whole = sum(figures)
        for part, label, percent, figure in zip(self._parts, self._figures, self._percents, figures, strict=True):
            share = figure / whole if whole else 0.0
            # A little of something is something: it keeps a sliver that can be seen.
            part.style(f"flex: {share:.5f} 1 {'3px' if figure else '0'}")
            label.set_text(f"{figure:,}")
            percent.set_text(f"{share:.1%}" if whole else "")
