"""Clients in JavaScript, from npm: where they are missing, tests that need them say so, and fail in CI."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

CLIENTS = Path(__file__).parent


def has_javascript() -> bool:
    there = shutil.which("node") is not None and (CLIENTS / "node_modules" / "cloudevents").is_dir()
    assert there or os.environ.get("CI") != "true", "CI needs node and npm: `make setup` installs the clients"
    return there


def need_javascript() -> None:
    """Skips the test where there is none."""
    if not has_javascript():
        pytest.skip("node, or what npm installs in tests/javascript, is missing; `make setup` installs it")


def clients(place: Path) -> Path:
    """A directory where node finds the clients."""
    modules = place / "node_modules"
    if not modules.exists() and (CLIENTS / "node_modules").is_dir():
        modules.symlink_to(CLIENTS / "node_modules")
    return place
