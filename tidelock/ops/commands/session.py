"""A command's session: its settings from file, environment and flags, and the composition above it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any, Protocol, cast

import typer

from tidelock.settings import TABLE, Settings, load

if TYPE_CHECKING:
    # Only when a command needs them: help must not wait for a database driver.
    from tidelock.fold.redefine.recomputation import Recomputation
    from tidelock.ingest.intake import Recorder
    from tidelock.ledger.database import Database
    from tidelock.spark.runtime import Spark


_PANEL = "Settings"


def setting(path: str, metavar: str) -> Any:
    """The flag of a setting, as the table of settings describes it; its value is checked there too."""
    option = TABLE[path]
    shown = option.spec.unset or ("" if option.default is None else option.spec.kind.write(option.default))
    return typer.Option(
        option.flag,
        metavar=metavar,
        help=option.spec.help,
        rich_help_panel=_PANEL,
        show_default=shown.strip('"').replace("`", "") or False,
    )


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Settings file.",
        show_default="./tidelock.toml if there is one",
        rich_help_panel=_PANEL,
    ),
]
Data = Annotated[str | None, setting("data", "DIR")]
DatabaseUrl = Annotated[str | None, setting("database_url", "URL")]
Json = Annotated[bool, typer.Option("--json", help="Answer in JSON, for programs; lists are one object a line.")]


class OpenLedger(Protocol):
    """A ledger that records."""

    @property
    def database(self) -> Database: ...

    @property
    def sequencer(self) -> Recorder: ...


class Composition(Protocol):
    """What `tidelock.app` gives to commands."""

    def open_ledger(self, settings: Settings, *, streams_open: bool) -> AbstractAsyncContextManager[OpenLedger]: ...

    def serve(
        self,
        settings: Settings,
        *,
        streams_open: bool,
        announce: Callable[[str, bool], None],
        children: Mapping[str, Sequence[str]],
        accept_lost_tail: bool,
    ) -> None: ...

    def fold(
        self, settings: Settings, *, stop: Event, rebuild: bool, once: bool, tell: Callable[[str], None]
    ) -> None: ...

    def replay(
        self,
        settings: Settings,
        names: Sequence[str],
        *,
        lake: bool,
        stop: Event,
        tell: Callable[[str], None],
        progress: Callable[[int, int], None],
    ) -> None: ...

    def recompute(
        self,
        settings: Settings,
        database: Database,
        names: Sequence[str],
        *,
        stop: Event,
        tell: Callable[[str], None],
        progress: Callable[[int, int], None],
    ) -> Recomputation | None: ...

    def started_spark(self, settings: Settings, tell: Callable[[str], None]) -> AbstractContextManager[Spark]: ...


def composition(context: typer.Context) -> Composition:
    """The composition, loaded now."""
    return cast(Composition, context.obj())


def read_settings(config: Path | None, **flags: object) -> Settings:
    """Flags go by the names of settings; None is not given."""
    return load(config, os.environ, flags)


def made_ledger(settings: Settings) -> AbstractContextManager[Database]:
    """The database, with a ledger in it when there was none."""
    from tidelock.ledger import opening as place

    return place.made_ledger(settings)


def found_ledger(settings: Settings) -> AbstractContextManager[Database]:
    """The database of a ledger that is there."""
    from tidelock.ledger import opening as place

    return place.found_ledger(settings)
