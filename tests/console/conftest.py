"""A browser."""

from __future__ import annotations

import os
from collections.abc import Iterator
from shutil import which

import pytest
from playwright.sync_api import Browser, Error, expect, sync_playwright

# A bound on hanging, not on speed.
expect.set_options(timeout=60_000)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The browser of the machine, else the one that `make setup` brought. For files without asynchronous tests.

    The headless shell draws the same pages without a window, toolbar and menus: two thirds of the processor time.
    """
    found = which("chromium-headless-shell") or which("chromium") or which("chromium-browser") or which("google-chrome")
    with sync_playwright() as playwright:
        try:
            launched = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        except Error:
            if os.environ.get("CI") == "true":
                raise
            pytest.skip("there is no Chromium here; `make setup` brings one, or install the package chromium")
        yield launched
        launched.close()
