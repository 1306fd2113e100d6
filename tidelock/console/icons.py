"""Icons: a few strokes each, on a grid of 20, in the colour of the text around them."""

# ruff: noqa: E501  (a drawing is one line)
from __future__ import annotations

_STROKES = {
    "pulse": "M2 11h3.5l2.5-7 4 12 2.5-7H18",
    "rows": "M3 5h14M3 10h14M3 15h9",
    "bars": "M4 17V10M10 17V3M16 17v-5",
    "window": "M3 4.5h14v11H3zM7.7 4.5v11M12.3 4.5v11",
    "broadcast": "M10 10h.01M6.5 13.5a5 5 0 0 1 0-7M13.5 6.5a5 5 0 0 1 0 7M4 16a8.5 8.5 0 0 1 0-12M16 4a8.5 8.5 0 0 1 0 12",
    "bolt": "M11 2 4 11.5h5L8.5 18 16 8.5h-5z",
    "gauge": "M3 15a8 8 0 1 1 14 0M10 12.5l3.5-4.5M10 12.5h.01",
    "layers": "m10 3 7.5 4L10 11 2.5 7zM2.5 10.5 10 14.5l7.5-4M2.5 13.8 10 17.8l7.5-4",
    "shield": "M10 2.5 16.5 5v4.5c0 4-2.7 6.7-6.5 8-3.8-1.3-6.5-4-6.5-8V5zM7 10l2.2 2.2L13.2 8",
    "table": "M3 4h14v12H3zM3 8h14M3 12h14M8 8v8",
    "more": "M4.5 10h.01M10 10h.01M15.5 10h.01",
    "sun": "M10 6.5a3.5 3.5 0 1 0 0 7 3.5 3.5 0 0 0 0-7zM10 1.5v1.8M10 16.7v1.8M1.5 10h1.8M16.7 10h1.8M4 4l1.3 1.3M14.7 14.7 16 16M4 16l1.3-1.3M14.7 5.3 16 4",
    "moon": "M16.5 11.5A7 7 0 1 1 8.5 3.5a5.5 5.5 0 0 0 8 8z",
    "pause": "M7 4v12M13 4v12",
    "play": "M6 4l10 6-10 6z",
    "left": "M12.5 4.5 7 10l5.5 5.5",
    "right": "M7.5 4.5 13 10l-5.5 5.5",
    "out": "M8 3.5H4v13h4M12.5 6.5 16 10l-3.5 3.5M16 10H8",
    "book": "M4 3.5h9.5A2.5 2.5 0 0 1 16 6v10.5H6a2 2 0 0 1-2-2zM4 14.5a2 2 0 0 1 2-2h10",
    "check": "m4 10.5 4 4 8-9",
    "alert": "M10 3 18 16.5H2zM10 8v4M10 14.4h.01",
    "copy": "M7 7h9.5v9.5H7zM13 7V3.5H3.5V13H7",
    "search": "M9 3.5a5.5 5.5 0 1 0 0 11 5.5 5.5 0 0 0 0-11zM13 13l4 4",
    "plus": "M10 4v12M4 10h12",
    "stop": "M5.5 5.5h9v9h-9z",
    "again": "M16.5 10a6.5 6.5 0 1 1-2-4.7M16.5 3v3.6h-3.6",
    "bin": "M4 6h12M8 6V3.5h4V6M5.5 6l.8 11h7.4l.8-11M8.5 9v5M11.5 9v5",
    "close": "M5 5l10 10M15 5 5 15",
    "link": "M8.5 11.5a3.2 3.2 0 0 0 4.6 0l2.7-2.7a3.2 3.2 0 0 0-4.6-4.6L10 5.4M11.5 8.5a3.2 3.2 0 0 0-4.6 0l-2.7 2.7a3.2 3.2 0 0 0 4.6 4.6L10 14.6",
}  # fmt: skip


def svg(name: str) -> str:
    """The icon as markup."""
    return (
        '<svg class="tl-icon" viewBox="0 0 20 20" fill="none" stroke="currentColor" stroke-width="1.6" '
        f'stroke-linecap="round" stroke-linejoin="round" aria-hidden="true"><path d="{_STROKES[name]}"/></svg>'
    )
