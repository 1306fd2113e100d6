"""Where the demo lives: only in a ledger that a demo made, which it may also forget."""

from __future__ import annotations

import shutil

from tidelock.errors import SettingsError
from tidelock.ledger import postmaster
from tidelock.ledger.opening import open_database
from tidelock.settings import Settings

_ELSEWHERE = "name another place with --data"


def claim(settings: Settings, *, fresh: bool) -> None:
    """Make sure that sample events go into a demo's ledger. Raises SettingsError where there is another."""
    if settings.database_url is not None:
        raise SettingsError("the demo records sample events in a ledger of its own: unset DATABASE_URL for it")
    mark = settings.data / "demo.ledger"
    if (settings.data / "postgres").exists() and not mark.exists():
        raise SettingsError(f"the ledger in {settings.data} is not a demo's, and would get its events: {_ELSEWHERE}")
    if fresh:
        _forget(settings)
    mark.touch()


def _forget(settings: Settings) -> None:
    """Remove the ledger and its anchor; what was fetched stays."""
    cluster = settings.data / "postgres"
    if not cluster.exists():
        return
    # One that a killed demo left running is found, joined, and stopped by its last user: this one.
    open_database(settings).close()
    if postmaster.find(cluster.absolute()) is not None:
        raise SettingsError(f"another command uses the ledger in {settings.data}: stop it first, or {_ELSEWHERE}")
    shutil.rmtree(cluster)
    settings.anchor_path.unlink(missing_ok=True)
