"""Verifying a ledger that is served: the checks of `tidelock verify`, run in the background."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tidelock.api.background import Background, Report, RunState, run_task
from tidelock.ledger.findings import Check
from tidelock.ledger.verify import verify
from tidelock.postgres.database import Database


class Verification(RunState, frozen=True, rename="camel"):
    """A run of the checks of the ledger: `done` of `total` sequences while it is running, the findings afterwards."""

    #: null until it is done
    ok: bool | None = None
    checks: list[Check] = msgspec.field(default_factory=list)
    #: the difference that lies first in the ledger
    first: str | None = None


class _VerifyTask(msgspec.Struct, frozen=True):
    url: str
    anchor: Path


class Verifying(Background[Verification]):
    """The current verification, or the last one."""

    def __init__(self, database: Database, anchor: Path) -> None:
        super().__init__(__name__, "verification", Verification("none"))
        self._task = _VerifyTask(database.url, anchor)

    def start(self) -> Verification:
        """Start one, unless one is running."""
        return self.state if self.state.state == "running" else self._begin(lambda: (self._task, ()))


def _verified(task: _VerifyTask, report: Report) -> Verification:
    found = verify(Database(task.url), task.anchor, report)
    checks = found.report.checks
    return Verification("done", ok=all(check.ok for check in checks), checks=list(checks), first=found.first)


if __name__ == "__main__":
    run_task(_VerifyTask, _verified)
