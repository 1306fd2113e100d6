"""Options: what one setting is. A function here creates a field of a settings class, and nothing else is needed.

The field gives the type and default in code, the validation of file, environment and flags, and the line in the
reference page.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tidelock.settings.kinds as kinds
from tidelock.durations import parse_duration
from tidelock.settings.kinds import Kind

_OPTION, _SECTION = "option", "section"


@dataclass(frozen=True, slots=True)
class Spec:
    """What a setting's field declares besides its type."""

    kind: Kind
    #: one or two sentences for people
    help: str
    #: as written in tidelock.toml
    example: str | None = None
    #: what happens without a value, if the default does not show it
    unset: str | None = None
    #: never shown, not even in errors
    secret: bool = False
    #: an environment variable that other programs use for it; `TIDELOCK_...` takes precedence
    also_env: str | None = None


@dataclass(frozen=True, slots=True)
class Option:
    """A line of the table of settings."""

    #: as in the file: `postgres.shared_buffers`
    path: str
    default: object
    spec: Spec

    @property
    def env(self) -> str:
        return "TIDELOCK_" + self.path.replace(".", "_").upper()

    @property
    def flag(self) -> str:
        return "--" + self.path.replace(".", "-").replace("_", "-")


def options(settings: type, prefix: str = "") -> Iterator[Option]:
    """The table of settings: every field of the class and of its sections."""
    for field in dataclasses.fields(settings):
        if spec := field.metadata.get(_OPTION):
            default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
            yield Option(prefix + field.name, default, spec)
        elif section := field.metadata.get(_SECTION):
            yield from options(section, f"{prefix}{field.name}.")


def sections(settings: type) -> dict[str, type]:
    """The sections of a settings class, by name."""
    return {
        field.name: field.metadata[_SECTION] for field in dataclasses.fields(settings) if _SECTION in field.metadata
    }


# The functions below return what `dataclasses.field` returns, typed Any so that it can stand for the field's default.


def section(of: type) -> Any:
    """A table of settings inside another."""
    return dataclasses.field(default_factory=of, metadata={_SECTION: of})


def text(default: str | None, about: str, **spec: Any) -> Any:
    return _option(default, Spec(kinds.TEXT, about, **spec))


def pattern(default: str, form: str, allowed: str, about: str, **spec: Any) -> Any:
    return _option(default, Spec(kinds.pattern(form, allowed), about, **spec))


def choice(default: str, choices: tuple[str, ...], about: str, **spec: Any) -> Any:
    return _option(default, Spec(kinds.choice(choices), about, **spec))


def flag(default: bool | None, about: str, **spec: Any) -> Any:
    return _option(default, Spec(kinds.FLAG, about, **spec))


def path(default: str | None, about: str, **spec: Any) -> Any:
    return _option(None if default is None else Path(default), Spec(kinds.PATH, about, **spec))


def integer(default: int | None, about: str, *, minimum: int = 1, maximum: int = 10**9, **spec: Any) -> Any:
    return _option(default, Spec(kinds.integer(minimum, maximum), about, **spec))


def seconds(default: float, about: str, *, minimum: float, maximum: float, **spec: Any) -> Any:
    return _option(default, Spec(kinds.seconds(minimum, maximum), about, **spec))


def size(default: str, about: str, *, minimum: str, maximum: str, **spec: Any) -> Any:
    bounds = kinds.parse_size(minimum), kinds.parse_size(maximum)
    return _option(kinds.parse_size(default), Spec(kinds.size(*bounds), about, **spec))


def duration(default: str | None, about: str, *, minimum: str = "0s", **spec: Any) -> Any:
    kind = kinds.duration(parse_duration(minimum))
    return _option(None if default is None else parse_duration(default), Spec(kind, about, **spec))


def durations(default: tuple[str, ...], about: str, **spec: Any) -> Any:
    return _option(tuple(map(parse_duration, default)), Spec(kinds.DURATIONS, about, **spec))


def names(about: str, **spec: Any) -> Any:
    return _option((), Spec(kinds.NAMES, about, **spec))


def origins(about: str, **spec: Any) -> Any:
    return _option((), Spec(kinds.ORIGINS, about, **spec))


def table(about: str, **spec: Any) -> Any:
    return dataclasses.field(default_factory=dict, metadata={_OPTION: Spec(kinds.TABLE, about, **spec)})


def properties(kind: Kind, about: str, **spec: Any) -> Any:
    made = Spec(kind, about, **spec)
    return dataclasses.field(default_factory=dict, repr=not made.secret, metadata={_OPTION: made})


def _option(default: object, spec: Spec) -> Any:
    return dataclasses.field(default=default, repr=not spec.secret, metadata={_OPTION: spec})
