"""Settings: one table for file, environment, flags and reference page."""

import dataclasses
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelock.durations import UNITS
from tidelock.errors import SettingsError
from tidelock.settings import TABLE, Settings, load
from tidelock.settings.kinds import format_size, parse_size
from tidelock.settings.reference import settings_by_purpose, settings_page

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def from_text(text: str, environ: dict[str, str] | None = None, flags: dict[str, object] | None = None) -> Settings:
    Path("tidelock.toml").write_text(text)
    return load(None, environ or {}, flags or {})


def error(
    text: str = "", environ: dict[str, str] | None = None, flags: dict[str, object] | None = None
) -> SettingsError:
    with pytest.raises(SettingsError) as raised:
        from_text(text, environ, flags)
    assert raised.value.exit_code == 2
    return raised.value


def test_without_a_word_everything_has_its_default() -> None:
    settings = load(None, {}, {})
    assert settings == Settings()
    assert settings.data == Path(".tidelock")
    assert (settings.host, settings.port) == ("127.0.0.1", 8080)
    assert [settings.database_url, settings.salt, settings.streams_open, settings.anchor] == [None] * 4
    assert settings.future_tolerance == UNITS["h"]
    assert settings.request_bytes_max == 16 * 2**20
    assert settings.meters.lateness == 48 * UNITS["h"]
    assert settings.postgres.shared_buffers == "512MB"
    assert settings.anchor_path == Path(".tidelock/anchor.jsonl")


def test_every_default_is_a_value_one_could_give() -> None:
    for option in TABLE.values():
        if option.default is not None:
            written = tomllib.loads(f"value = {option.spec.kind.write(option.default)}")["value"]
            assert option.spec.kind.read(written) == option.default


def test_a_flag_goes_before_the_environment_that_before_the_file_that_before_the_default() -> None:
    environ = {"TIDELOCK_PORT": "2", "TIDELOCK_PAGE_ROWS": "2"}
    settings = from_text("port = 1\npage_rows = 1\nqueue_events_max = 1", environ, {"port": 3})
    assert (settings.port, settings.page_rows, settings.queue_events_max, settings.page_rows_max) == (3, 2, 1, 1000)


def test_a_flag_of_none_was_not_given() -> None:
    assert from_text("port = 1", {}, {"port": None}).port == 1


def test_sections_are_tables_of_the_file_and_parts_of_the_variables_name() -> None:
    settings = from_text(
        '[postgres]\nbinaries = "/opt/pg"\nconfig = { work_mem = "64MB", jit = false, max_connections = 50 }',
        {"TIDELOCK_POSTGRES_SHARED_BUFFERS": "1GB"},
        {"postgres.max_wal_size": "2GB"},
    )
    assert settings.postgres.binaries == Path("/opt/pg")
    assert settings.postgres.config == {"work_mem": "64MB", "jit": "off", "max_connections": "50"}
    assert (settings.postgres.shared_buffers, settings.postgres.max_wal_size) == ("1GB", "2GB")


def test_the_environment_can_say_everything_the_file_can() -> None:
    environ = {
        "TIDELOCK_DATA": "/var/lib/tidelock",
        "TIDELOCK_PORT": "0",
        "TIDELOCK_STREAMS_OPEN": "false",
        "TIDELOCK_FUTURE_TOLERANCE": "90s",
        "TIDELOCK_REQUEST_BYTES_MAX": "1MiB",
        "TIDELOCK_WS_PING_S": "0.5",
        "TIDELOCK_PLUGINS": "shop.eventtime, other",
        "TIDELOCK_POSTGRES_CONFIG": '{"work_mem": "64MB"}',
        "TIDELOCK_METERS_LATENESS": "1h",
        "TIDELOCK_LOG_LEVEL": "debug",
    }
    file = """
        data = "/var/lib/tidelock"
        port = 0
        streams_open = false
        future_tolerance = "90s"
        request_bytes_max = 1048576
        ws_ping_s = 0.5
        plugins = ["shop.eventtime", "other"]
        log_level = "debug"
        [postgres.config]
        work_mem = "64MB"
        [meters]
        lateness = "1h"
        """
    assert load(None, environ, {}) == from_text(file)


def test_the_plain_database_url_counts_when_ours_is_not_set() -> None:
    plain, ours = {"DATABASE_URL": "postgresql://plain"}, {"TIDELOCK_DATABASE_URL": "postgresql://ours"}
    assert from_text('database_url = "postgresql://file"').database_url == "postgresql://file"
    assert from_text('database_url = "postgresql://file"', plain).database_url == "postgresql://plain"
    assert load(None, plain | ours, {}).database_url == "postgresql://ours"
    assert from_text("", {"DATABASE_URL": ""}).database_url is None


def test_brokers_are_a_list_or_a_text_with_commas_and_their_options_have_dots() -> None:
    options = '[kafka.options]\nsasl.mechanism = "PLAIN"\n"socket.nagle.disable" = true'
    settings = from_text(f'[kafka]\nbrokers = ["a:9092", "b:9092"]\n{options}')
    assert settings.kafka.brokers == ("a:9092", "b:9092")
    assert settings.kafka.options == {"sasl.mechanism": "PLAIN", "socket.nagle.disable": "true"}
    environ = {"TIDELOCK_KAFKA_BROKERS": "a:9092, b:9092"}
    assert load(Path(os.devnull), environ, {}).kafka.brokers == ("a:9092", "b:9092")
    assert "PLAIN" not in repr(settings)


def test_definitions_come_with_the_settings() -> None:
    settings = from_text('[meters]\nlateness = "1h"\n[meters.calls]\n[streams.trades]\n', {}, {"meters.lateness": "2h"})
    assert settings.definitions.meters["calls"].lateness_ns == 2 * UNITS["h"]
    assert settings.definitions.known_stream("trades")


def test_event_time_types_of_plugins_are_left_to_the_fold() -> None:
    stream = '[streams.s]\neventtime = { column = "data.t", type = "julian" }'
    assert "julian" in error(stream).message
    assert from_text(f'plugins = ["mine"]\n{stream}').definitions.stream("s") is not None


def test_a_named_file_is_read_and_must_be_there(tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text("port = 7")
    Path("tidelock.toml").write_text("port = 1")
    assert load(other, {}, {}).port == 7
    with pytest.raises(SettingsError, match=r"missing\.toml does not exist"):
        load(tmp_path / "missing.toml", {}, {})
    with pytest.raises(SettingsError, match="cannot be read: Is a directory"):
        load(tmp_path, {}, {})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("port 8080", "line 1, column 6"),
        ("a = 1\n\nport = = 2", "line 3, column 8"),
        ("[streams.a\n", "line 1, column 11"),
        ('host = "a', "line 1, column 10"),
        ("port = 1\nport = 2", "line 2, column 9"),
    ],
)
def test_what_is_not_toml_is_reported_with_line_and_column(text: str, said: str) -> None:
    message = error(text).message
    assert message.startswith(f"tidelock.toml, {said}: ")


def test_a_file_that_is_not_utf_8_is_reported_with_line_and_column() -> None:
    Path("tidelock.toml").write_bytes(b'port = 1\nhost = "\xff"')
    with pytest.raises(SettingsError, match="line 2, column 9: this is not UTF-8"):
        load(None, {}, {})


@pytest.mark.parametrize("text", [f"port = {'1' * 10_000}", f"a = {'[' * 100_000}", "a = 1e99999999999999999999"])
def test_absurd_files_are_refused_without_a_traceback(text: str) -> None:
    error(text)


@pytest.mark.parametrize(
    ("text", "environ", "flags", "said"),
    [
        ("prot = 1", {}, {}, ["prot is not a known key in tidelock.toml", "did you mean port?"]),
        ("[postgres]\nshared_bufers = 1", {}, {}, ["postgres.shared_bufers", "toml [postgres]", "shared_buffers"]),
        ("[stream.trades]", {}, {}, ["stream is", "did you mean streams?"]),
        ("[meters]\nlatenes = '1h'", {}, {}, ["meters.latenes", "tidelock.toml [meters]", "lateness"]),
        ("[streams.a]\ncolums = {}", {}, {}, ["streams.a.colums", "tidelock.toml [streams.a]", "columns"]),
        ("", {"TIDELOCK_PROT": "1"}, {}, ["TIDELOCK_PROT is", "the environment", "TIDELOCK_PORT"]),
        ("", {}, {"prot": 1}, ["prot is", "the flags", "did you mean port?"]),
        ("postgres = 5", {}, {}, ["postgres in tidelock.toml", "a table"]),
    ],
)  # fmt: skip
def test_an_unknown_key_is_reported_with_its_position_and_the_nearest_known_one(
    text: str, environ: dict[str, str], flags: dict[str, object], said: list[str]
) -> None:
    message = error(text, environ, flags).message
    assert all(part in message for part in said), message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("port = 65536", ["port in tidelock.toml", "65536", "a whole number from 0 to 65535"]),
        ('port = "http"', ['"http"']),
        ("port = 80.0", ["80.0"]),
        ("port = true", ["true"]),
        ("port = [1]", ["[1]"]),
        ("port = {}", ["a table"]),
        ("request_events_max = 10001", ["from 1 to 10000"]),
        ("commit_events_max = 0", ["from 1 to 10000"]),
        ("page_rows_max = 1001", ["from 1 to 1000"]),
        ("import_chunk_events = 1001", ["from 1 to 1000"]),
        ('request_bytes_max = "16MB"', ['"16MB"', "16MiB", "from 1KiB to 1GiB"]),
        ("request_bytes_max = 1", ["from 1KiB"]),
        ('future_tolerance = "soon"', ['"soon"', "a duration"]),
        ("future_tolerance = 5", ["5", "a duration"]),
        ('anchor_interval = "0s"', ["at least 1ms"]),
        ("ws_ping_s = nan", ["a number of seconds"]),
        ("ws_ping_s = -1", ["from 0.1 to 3600"]),
        ("ws_ping_s = inf", ["from 0.1 to 3600"]),
        ('log_level = "loud"', ['"loud"', "debug info warning error"]),
        ('streams_open = "perhaps"', ["true or false"]),
        ("streams_open = 1", ["true or false"]),
        ('host = ""', ["non-empty"]),
        ("data = 5", ["a path"]),
        ('plugins = [1]', ["a list of names"]),
        ('[postgres]\nshared_buffers = "much"', ["postgres.shared_buffers in tidelock.toml [postgres]", "512MB"]),
        ("[postgres]\nconfig = { a = [] }", ["postgres.config", "a table of strings"]),
        ('[postgres]\nconfig = { "a b" = "c" }', ["postgres.config", "a table of strings"]),
    ],
)  # fmt: skip
def test_a_bad_value_is_reported_with_what_was_given_and_what_is_allowed(text: str, said: list[str]) -> None:
    message = error(text).message
    assert all(part in message for part in [*said, "is not allowed; it must be"]), message


def test_a_bad_value_names_the_variable_or_flag_it_came_from() -> None:
    found = error("", {"TIDELOCK_PORT": "http"})
    assert found.message.startswith('port in the environment (TIDELOCK_PORT): "http" is not allowed')
    assert found.field == "port"
    assert "the flags (--postgres-shared-buffers)" in error("", {}, {"postgres.shared_buffers": "x"}).message


def test_a_secret_is_never_shown() -> None:
    settings = from_text('salt = "hush"\ndatabase_url = "postgresql://me:hush@db/x"')
    assert "hush" not in repr(settings)
    for found in (error('salt = ["hush"]'), error('database_url = ["hush"]'), error("", {}, {"salt": ["hush"]})):
        assert "hush" not in found.message
        assert "(not shown)" in found.message
        assert found.__context__ is None


def test_a_home_directory_is_not_a_directory_called_tilde(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/tide")
    assert from_text('data = "~/ledger"').data == Path("/home/tide/ledger")


@given(st.integers(0, 2**40))
def test_a_formatted_size_parses_to_itself(number: int) -> None:
    assert parse_size(format_size(number)) == number


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().port = 1  # type: ignore[misc]


def test_a_client_that_follows_a_table_may_be_told_of_the_largest_request() -> None:
    """Its changes come at once: who is sent away by them never had a chance to read."""
    settings = from_text("")
    assert settings.live_queue_rows_max >= settings.request_events_max


def test_every_setting_is_explained_and_no_two_share_a_variable() -> None:
    assert all(option.spec.help.endswith(".") for option in TABLE.values())
    assert len({option.env for option in TABLE.values()}) == len(TABLE)


def test_the_reference_page_is_current() -> None:
    assert (ROOT / "docs" / "settings.md").read_text() == settings_page(), "run `make docs`"


def test_every_setting_is_in_the_reference_page_once_under_what_it_is_for() -> None:
    placed = [option.path for _, options in settings_by_purpose() for option in options]
    assert sorted(placed) == sorted(TABLE)
    assert all(options for _, options in settings_by_purpose()), "no heading without settings"


def test_the_module_prints_the_reference_page() -> None:
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-m", "tidelock.settings"], capture_output=True, text=True, env=environ)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", settings_page())
