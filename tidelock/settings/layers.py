"""Layers: what file, environment and flags give, each as the same kind of item."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from tidelock.errors import SettingsError
from tidelock.sections import Section, shown, unknown_key
from tidelock.settings.options import Option, sections

S = TypeVar("S")
Table = Mapping[str, Option]

_ENVIRONMENT = "the environment"
_PREFIX = "TIDELOCK_"


@dataclass(frozen=True, slots=True)
class Given:
    """A value that somebody gave for a setting."""

    option: Option
    value: object
    #: how errors call the place it was given at
    place: str

    def read(self) -> object:
        """The value as the code uses it. Raises SettingsError."""
        spec = self.option.spec
        try:
            return spec.kind.read(self.value)
        except (ValueError, OverflowError, RecursionError):
            # Not `from error`: its text would hold the value, and that may be a secret.
            what = "the value (not shown)" if spec.secret else shown(self.value)
        message = f"{self.option.path} in {self.place}: {what} is not allowed; it must be {spec.kind.allowed}"
        raise SettingsError(message, field=self.option.path)


def from_file(file: Section, table: Table, *, definitions: Collection[str]) -> dict[str, Given]:
    """What the file says; the tables of `definitions` are read elsewhere."""
    return {given.option.path: given for given in _flat(file, table, definitions)}


def _flat(section: Section, table: Table, definitions: Collection[str]) -> Iterator[Given]:
    prefix = f"{section.path}." if section.path else ""
    below = [path.removeprefix(prefix) for path in table if path.startswith(prefix)]
    known = dict.fromkeys(name.partition(".")[0] for name in below)
    known.update(dict.fromkeys([] if prefix else definitions))
    for name, value in section.values.items():
        if section.path in definitions and isinstance(value, Mapping):
            continue  # a meter, not a setting of all meters
        if (option := table.get(prefix + name)) is not None:
            yield Given(option, value, section.place)
        elif name not in known:
            raise unknown_key(section.key(name), name, known, section.place)
        elif any(path.startswith(f"{name}.") for path in below):
            yield from _flat(section.table(name), table, definitions)


def from_environment(environ: Mapping[str, str], table: Table) -> dict[str, Given]:
    options = {option.env: option for option in table.values()}
    for name in environ:
        if name.startswith(_PREFIX) and name not in options:
            raise unknown_key(name, name, options, _ENVIRONMENT)
    given = {}
    for name, option in options.items():
        # A variable that others use too may be there but empty; ours may not.
        if (other := option.spec.also_env) and environ.get(other):
            given[option.path] = Given(option, environ[other], f"{_ENVIRONMENT} ({other})")
        if name in environ:
            given[option.path] = Given(option, environ[name], f"{_ENVIRONMENT} ({name})")
    return given


def from_flags(flags: Mapping[str, object], table: Table) -> dict[str, Given]:
    for name in flags:
        if name not in table:
            raise unknown_key(name, name, table, "the flags")
    return {
        name: Given(table[name], value, f"the flags ({table[name].flag})")
        for name, value in flags.items()
        if value is not None
    }


def build(settings: type[S], values: Mapping[str, object], prefix: str = "") -> S:
    """An instance of a settings class, with defaults for what is not among the values."""
    inner: dict[str, Any] = {
        name: build(section, values, f"{prefix}{name}.") for name, section in sections(settings).items()
    }
    under = {path.removeprefix(prefix): value for path, value in values.items() if path.startswith(prefix)}
    own: dict[str, Any] = {name: value for name, value in under.items() if "." not in name}
    return settings(**own, **inner)
