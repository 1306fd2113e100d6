"""Which internals of uvicorn are used: what a connection may take before it is known is decided inside its protocols.

A release that renames one of them would break limits in a way that few requests show. So the version has an upper
bound, and whoever raises it sees here what to look at.
"""

import ast
import inspect
import re
import textwrap
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from tidelock.http.connection import HttpConnection
from tidelock.http.listener import Server, _WebSocket

pytestmark = pytest.mark.check

PYPROJECT = Path(__file__).parent.parent.parent / "pyproject.toml"

#: names of the base class that our subclass calls, overrides or reads
USED = {
    HttpConnection: (
        "_should_upgrade _start_asgi_task _unset_keepalive_if_required _unsupported_upgrade_warning app client "
        "connection_lost connection_made connections cycle data_received flow handle_websocket_upgrade headers loop "
        "on_body on_header on_headers_complete on_message_begin on_message_complete on_response_complete parser "
        "pause_writing pipeline resume_writing server_state shutdown tasks transport url"
    ),
    _WebSocket: (
        "close_sent close_timeout close_timer conn connection_lost data_received disconnected frames handle_connect "
        "handle_cont handle_parser_exception handle_ping handshake_complete handshake_initiated initial_response "
        "keepalive_timeout loop pending_ping_payload pong_timer queue read_paused run_asgi scope send shutdown "
        "transport writable"
    ),
    Server: "capture_signals startup",
}


def names_in_base(subclass: type) -> set[str]:
    """What a subclass defines or takes from `self` or `super()`, as far as the base class has it."""
    base = inspect.getsource(subclass.__mro__[1])
    found = set()
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(subclass)))):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.Attribute(value=ast.Name(id="self") | ast.Call(func=ast.Name(id="super")), attr=name):
                found.add(name)
    return {name for name in found if not name.startswith("__") and re.search(rf"(self\.|def ){name}\b", base)}


@pytest.mark.parametrize("subclass", USED, ids=lambda each: each.__name__)
def test_uvicorn_has_every_name_that_is_used_of_it(subclass: type) -> None:
    assert names_in_base(subclass) == set(USED[subclass].split())


def test_a_new_uvicorn_is_looked_at_before_it_is_taken() -> None:
    server = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]["server"]
    (bound,) = [re.search(r"<0\.(\d+)", each) for each in server if each.startswith("uvicorn")]
    assert bound is not None
    assert int(version("uvicorn").split(".")[1]) < int(bound[1])
