"""Plugins: the modules that the settings name, imported by whoever folds or checks definitions before a fold."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable

from tidelock.definitions import Definitions
from tidelock.errors import SettingsError
from tidelock.fold.eventtimes import stream_parser


def load_plugins(modules: Iterable[str]) -> None:
    """Import modules, which register what they bring. Raises SettingsError that names the one that does not."""
    # As `python -m` does: a module beside tidelock.toml is found however the command was started.
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
    for module in modules:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise _failed(module, error) from error
            message = f'there is no module "{error.name}" in {os.getcwd()}, on PYTHONPATH or installed'
            raise SettingsError(f'plugins: "{module}" cannot be imported: {message}', field="plugins") from None
        # Whatever it does: it is not our code.
        except Exception as error:
            raise _failed(module, error) from error


def check_event_times(definitions: Definitions) -> None:
    """Whether there is a parser for every stream's event time. Raises SettingsError."""
    for name, stream in definitions.timed.items():
        if stream.eventtime is not None and stream.eventtime.type is not None:
            stream_parser(name, stream.eventtime.type)


def _failed(module: str, error: Exception) -> SettingsError:
    told = error.message if isinstance(error, SettingsError) else f"{type(error).__name__}: {error}"
    return SettingsError(f'plugins: "{module}" cannot be imported: {told}', field="plugins")
