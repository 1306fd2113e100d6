"""Event-time types: a registry by name, plugins that add to it, and what is said at the start when one is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tidelock.definitions import parse_definitions
from tidelock.errors import SettingsError
from tidelock.eventtimes import EventtimeTypeRegistry, check_event_times, eventtime_types, load_plugins

BUILT_IN = ("unixtimestamp_s", "unixtimestamp_ms", "unixtimestamp_us", "unixtimestamp_ns", "rfc3339")


def parser(text: Any) -> Any:
    return text


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that a command was started in; what is imported from it is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return tmp_path


def failure(*modules: str) -> str:
    with pytest.raises(SettingsError) as raised:
        load_plugins(modules)
    assert raised.value.field == "plugins"
    return raised.value.message


def test_the_built_in_types_are_there_and_an_alias_is_the_same_parser() -> None:
    types = EventtimeTypeRegistry()
    assert types.list() == (*BUILT_IN, "unixtimestamp")
    assert types.resolve("unixtimestamp") is types.resolve("unixtimestamp_s")
    assert all(callable(types.resolve(name)) for name in types.list())


def test_a_type_that_was_registered_is_there() -> None:
    types = EventtimeTypeRegistry()
    types.register("julian", parser)
    assert types.resolve("julian") is parser
    assert types.list()[-1] == "julian"
    assert "julian" not in eventtime_types.list()


def test_a_name_has_one_parser() -> None:
    types = EventtimeTypeRegistry()
    types.register("julian", parser)
    types.register("julian", parser)
    with pytest.raises(SettingsError, match='"julian" already'):
        types.register("julian", lambda text: text)
    with pytest.raises(SettingsError, match='"rfc3339" already exists'):
        types.register("rfc3339", parser)
    assert types.resolve("julian") is parser


@pytest.mark.parametrize("name", ["", "a b", "1st", "x" * 64, None, 'a"b'])
def test_a_name_can_be_written_in_the_file(name: Any) -> None:
    with pytest.raises(SettingsError, match="must have a name"):
        EventtimeTypeRegistry().register(name, parser)


def test_a_parser_is_a_function() -> None:
    with pytest.raises(SettingsError, match="must be a function"):
        EventtimeTypeRegistry().register("julian", "text")  # type: ignore[arg-type]


def test_an_unknown_type_is_reported_with_those_there_are() -> None:
    with pytest.raises(SettingsError, match=r'"julian"; available: unixtimestamp_s .* rfc3339 unixtimestamp'):
        EventtimeTypeRegistry().resolve("julian")


def test_a_plugin_beside_the_file_is_found(place: Path) -> None:
    (place / "shop_times.py").write_text("import tidelock.eventtimes\nloaded = True\n")
    load_plugins(["shop_times"])
    load_plugins(["shop_times"])
    assert sys.modules["shop_times"].loaded is True


def test_a_plugin_that_is_not_there_is_named(place: Path) -> None:
    (place / "shop").mkdir()
    message = failure("shop.eventtime")
    assert '"shop.eventtime"' in message
    assert str(place) in message
    assert '"nowhere"' in failure("nowhere.eventtime")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import absent_module", "ModuleNotFoundError: No module named 'absent_module'"),
        ("1 / 0", "ZeroDivisionError"),
        ("def", "SyntaxError"),
        (
            "from tidelock.eventtimes import eventtime_types\neventtime_types.register('rfc3339', lambda text: text)",
            'the event-time type "rfc3339" already exists',
        ),
    ],
)
def test_a_plugin_that_fails_is_named_with_what_it_said(place: Path, text: str, said: str) -> None:
    (place / "broken.py").write_text(text)
    message = failure("broken")
    assert '"broken" cannot be imported' in message
    assert said in message


def test_the_type_of_a_stream_is_told_to_be_missing_by_name() -> None:
    tables = {"streams": {"my clicks": {"eventtime": {"column": "data.t", "type": "julian"}}}}
    definitions = parse_definitions(tables, eventtime_types=None)
    with pytest.raises(SettingsError) as raised:
        check_event_times(definitions)
    assert raised.value.field == 'streams."my clicks".eventtime.type'
    for said in ('stream "my clicks"', '"julian"', *BUILT_IN, "plugins"):
        assert said in raised.value.message


def test_types_that_are_there_are_no_mistake() -> None:
    times = [{"column": "occurred_at"}, *({"column": "data.t", "type": name} for name in (*BUILT_IN, "unixtimestamp"))]
    streams = {f"s{number}": {"eventtime": time} for number, time in enumerate(times)}
    check_event_times(parse_definitions({"streams": streams, "meters": {"m": {}}}))


def test_names_can_be_checked_without_spark() -> None:
    code = "import sys, tidelock.eventtimes; print([n for n in sys.modules if n.startswith(('pyspark', 'py4j'))])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
