"""The receivers of the page on webhooks do what it says: they verify, and deal with each event once."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.javascript import need_javascript
from tidelock.postgres.ports import free_port
from tidelock.triggers.definition import event_id
from tidelock.triggers.payloads import payload
from tidelock.triggers.signatures import Signer, generate_secret

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "webhooks.md").read_text()
RECEIVERS = dict(re.findall(r"^```(py|javascript)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))


def _listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def receiving(kind: str, secret: str, here: Path) -> Iterator[tuple[str, Path]]:
    """The page's receiver as a process of its own: its URL, and where what it prints goes."""
    if kind == "javascript":
        need_javascript()
    interpreter = sys.executable if kind == "py" else "node"
    script, printed = here / f"receiver.{'py' if kind == 'py' else 'cjs'}", here / "printed"
    script.write_text(RECEIVERS[kind])
    port = free_port()
    environ = os.environ | {"PYTHONPATH": str(ROOT), "PORT": str(port), "WEBHOOK_SECRET": secret}
    with printed.open("w") as output:
        process = subprocess.Popen([interpreter, script], env=environ, stdout=output, cwd=here)
        try:
            deadline = time.monotonic() + 60
            while not _listening(port):
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.01)
            yield f"http://127.0.0.1:{port}/hook", printed
        finally:
            process.kill()
            process.wait()


@pytest.mark.parametrize("kind", ["py", "javascript"])
def test_a_receiver_of_the_page_verifies_and_deals_with_each_event_once(kind: str, tmp_path: Path) -> None:
    secret = generate_secret()
    found_id, now = event_id("big", "1", 7), time.time_ns()
    body = payload(
        event_id=found_id, event_type="MATCH", trigger="big", source_timestamp=7, data=b'{"qty":15}', sent_at_ns=now
    )
    headers = Signer([generate_secret(), secret]).headers(found_id, now // 10**9, body)
    old = Signer([secret]).headers(found_id, now // 10**9 - 1_000, body)
    with receiving(kind, secret, tmp_path) as (url, printed), httpx.Client() as client:
        assert client.post(url, content=body, headers=headers).status_code == 204
        assert client.post(url, content=body, headers=headers).status_code == 204
        assert client.post(url, content=body.replace(b"15", b"16"), headers=headers).status_code == 401
        assert client.post(url, content=body, headers=old).status_code == 401
        assert client.post(url, content=body).status_code == 401
        lines = printed.read_text().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("MATCH")
    assert "15" in lines[0]
