"""What outlives a version: names, numbers and hashes that databases, dashboards and other processes hold.

Two versions may run on one ledger for a while, and what is stored stays: none of these may change with the code. More
may come, and belongs in these lists then. The values are those of the first release.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from tests.model.cases import CASES, meter_of
from tests.model.eventtime_cases import shared_definitions
from tidelock.definitions import parse_definitions
from tidelock.tables import ALWAYS

pytestmark = pytest.mark.check

TESTS = Path(__file__).parent.parent
PACKAGE = TESTS.parent / "tidelock"
SOURCES = "\n".join(path.read_text() for path in [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.sql")])

#: of the worked cases and of the kept ledger: the fold rebuilds a table whose definition has another hash
HASHES = {
    "meters.case_0": "59ce41088f68a274225a0c007ca05fd3486a02c4e1894d7dae862e7caf3e1a57",
    "meters.case_1": "c9de29c4b341d5fadd45c1bae155c58a4cd1bacc43dc6761649caee12b32b6e3",
    "meters.case_2": "489913dabd5dc36e8b16738a1a0c8f8763cf86682dc9a3c5886cc0eb1ae810d7",
    "meters.case_3": "2de18df9bc8b37edaa90b4b4855102546b54b802e2e9f30260d27c5f8b568545",
    "meters.case_4": "07d2a94b7315bccbb95d85c6f7efe977a05e6b9643d2486c2d575cae499c5d69",
    "meters.case_5": "6658e5e1c3d35f245fc2235505ac716fa594251dcc5f2731741fbe828796f312",
    "meters.case_6": "c7a942973562152f26ec0f1ff45c26dbfb954d7f98990d73dd5bde767a25fb2f",
    "meters.case_7": "4696e2a6f6f2c3ee2898c56ff529836473774d5888dc535860756b160d5d3227",
    "meters.case_8": "a90e2bc36bc892090c4277f79ef05354f4065cc8fcd6a2d864b80aba76ce3c06",
    "meters.case_9": "a2f1f25af051c9ac617b3121e697368281a7817ff733928059699fa5f8b743f0",
    "meters.case_10": "75b919f130b55fae9655f2f70e3c43dc10d9b421e0d73bc0e74ee8f59977ddb4",
    "meters.case_11": "2d9eb5b7ee20e00761c6b7a4f6f572d889d5e2a09ddf2c6929c1bb23b422c3fd",
    "meters.case_12": "c5b55239ac63027da3b7abe3bea3c9494341ef2857c55fb118631409c7aaa967",
    "meters.case_13": "877f50a9d221786489bcaa4597da4a62a691e4fe6d026c7ba26642cf274d5529",
    "meters.case_14": "b305db5ae2036538e6e3c7d15e6733d5fa10b1cd0659af701b5228f53ba08be2",
    "meters.case_15": "c382797edebfbbf0884c0bcfcfdaadda32a2c706f7f031fbdb3f99435bc893fe",
    "streams.rows": "070ddd2307f4f2577c61f5978e201f8988cc41acc52bfd181fc36a62a2da57ca",
    "streams.arrivals": "04b579bf9c1fbb9d9434e1a55792637df118b3fa503e4326d82d797a0e21a33e",
    "streams.line_2": "02fd327d6c702c53a391b46cf2e3050526a541d2fb280ce259570ea97e5d03a7",
    "streams.line_3": "2410193b3ec7fb7726f1f5fbdee4cee3ce11d2b19c6633fd2b6ae59338584966",
    "streams.line_4": "7b8f8b6e76bb69b3eb0cf2a0127d4bfa00a8737ca49bf19821f654861cee1329",
    "streams.line_5": "7f993ca15dcfcb05b062edbcb102fa002b6fd64b974be1b2bd3fcbf5d8ec67ae",
    "streams.line_6": "a4f157d8bb8d3dbd92731a258036c2ffe0717d9a3fcb1a425dc0fd05b4c57d07",
    "streams.line_7": "e51933af7e907460691a8e6c24b7c35375bf873846e92a2ef61bf62f93f68544",
    "windows.totals_0": "fe650f1f973c9fd45c40bdf6070a3c43ad103dbb4fa92808091525ad456a62f4",
    "windows.totals_1": "4a20539a64c185a76e2a0c8085da6df585df36fe0dfbbd10f640409af61428c5",
    "windows.totals_2": "a5bd0576d64c6f0afade0c6c3518125f19d1764441e8448284e614959f9f28b9",
    "windows.totals_3": "7b38152061351046ea71503ada004c245853525e3e227a7d84070681b88c161a",
    "windows.totals_4": "74eb7ca3ced32f9a66da1baacf5fca9cacd39c9ff448dd2cfe4cfd74909756b1",
    "windows.totals_5": "e7071eedaf0eaa21a7cf260a2cc85dac7e1fbee17f94d89ac334f52cf4d96490",
    "windows.totals_6": "e65657827e7e1d949a1412b8027cf93b8354a8f7289da6da2af1b242b6a6e91c",
    "windows.totals_7": "e9d0be68878442540b3c8976b37fafed7689acc41fda6fe897fd2743a8359fc5",
    "windows.totals_8": "0e9b06c1b797cd6773958555ae108bad090a58f09efe84427df92c1c68b00636",
    "windows.totals_9": "3d847b0eb1f13115df5b7a1d5911379a322d252c7de8e6916accbe530ccac559",
    "streams.trades": "170f87e174a94e3e37e61b0fcf1f3e48adb70a4076a397123429d8128d941288",
    "streams.positions": "888e13e0bfcaba85fbcdb79b25d7ed6a48d7fcc5f8322ed9caa4838598b1f13b",
    "streams.typed": "139d471a7140a853b0ebe9787e7445c77ed03067710692fd3186048a6f2c0ab1",
    "streams.things": "0bbf8f7359c4dc56245efa072709536dc96e86ab627ab80578fc559cd50a57ad",
    "streams.notes": "2e26c4ad81bafcda2a40283cb28fe3fcfe94962070be1a0b165ca40a7c123148",
    "streams.readings": "8f07c8cb5448adb5b6e4488b90d2e10afa3535afeef37397d5c3b6dd0b7682e9",
    "streams.quotes": "29e8e53ead952021fc16d5c6d93b354bef56883d202a82f8b4b878ecd49ed1cb",
    "streams.pulses": "3b786649788d887d7bf39f8abe66470141750ff44e3f234ab9573aab948448b8",
    "streams.beats": "2368fa57735895b84b58aaa6c01a1746b5316d4262492dbe9059c773afbef874",
    "streams.clicks": "6962c5691c8b2d67d69a9e9389ca1895cf895144b96604a4c541f719437533d9",
    "meters.calls": "8da6581bf6e5f586e8248af8125bd257af66461ba34fc0e9b641da8588e607cb",
    "meters.calls_counted": "fd4ce4978b36fd7f686e1d86c4e7e78d96a1836f6a32ab7c7eb8024ef36adef1",
    "meters.calls_max": "3a7307986d0313b1161336053a8380b6960765a4f48535c5620e4024ce1b9ef9",
    "meters.calls_min": "3c0c6ae74ccef508f4566dfe9ec8c7d7ed2b9591f46d14373badb3740fe0c7bf",
    "meters.calls_last": "9bc0562db28fbc85f5143a32b639b6a260b88f6572141763b4ec72824a60ca24",
    "meters.calls_avg": "1bbf9a44ddde73eddda3b75aa3dbe93b45c7417e8aecc4054a4abf2aaeb5680e",
    "meters.bytes": "e2ab6bde52d370c90efd91ea44c5bc987c29506e7e76a1d47f89efdb3ea61ae0",
    "meters.traded": "418afcd54c76455629f48bbbf38bad122dc30e7c75d747d47cd865215c6ac0d0",
    "meters.clicks": "5a485a007a299bc359e9dc6975b28c27efc9228c5cb26bba70f84dce09a3e2c0",
    "windows.trades_tumbling": "73f128ae7299aecabebcf1d4a2dd2960cf3a85c5d23b215de6ec00b0a5dfb506",
    "windows.trades_hopping": "380396d4dfe56f92524636065150a612a45b5e5b453c126c336945850e8ec969",
    "windows.trades_by_five": "ff2a3401e23a5eb7c187e6ea50d1215fa72e24ade000ee27be94aeef5153cb77",
    "windows.reading_sessions": "b4f1625163b8390b8e68072ae70547866ca359a66c302042a5a10e88bff2bd00",
    "windows.idle_pulses": "5c9228eaac0805f1856ac39701c323158711938aba99ef1afc1b5ef6d33239ad",
    "windows.beat_hops": "e77aa0a74cbd6eab4945086b104c80bf570581c9bea2cd90c5ade52a47a08e84",
    "windows.click_sessions": "1e6a14aa506e390ef2acdb6132cfb8704a44b357936767ec9f42af4c00c23ddf",
    "windows.arrivals_tumbling": "5d08865651b8b35811c07712fb50f5be2fbfbf9b1b1c8b38ae3ac2506804795d",
    "windows.arrivals_hopping": "830fc467d9887eb4f697b39266243922402285d7cbb3c92260780a10bc0fb694",
    "windows.arrivals_session": "25adcb4edb220921d0eabfdd2386e4bb330acc18a35257b57c5e9089d60ecb85",
    "windows.arrivals_long_session": "4945f7a759d32d01344b66632324b0a84526c6a755d9ca214e52d223b1ff56c2",
    "windows.arrivals_by_seven": "491f03487d037322bb65acedd91b88169c5a16730d6de4e8be5e9729eb9b2ba3",
}

#: of readers: where each goes on
CURSORS = {"clickhouse", "fold", "kafka", "lake", "triggers"}
#: what the cursors of shadow tables begin with
CURSOR_PREFIXES = {"fold:check:", "fold:replayed:", "fold:shadow:"}
#: of notifications
CHANNELS = {
    "tidelock_due",
    "tidelock_fold",
    "tidelock_keys",
    "tidelock_ledger",
    "tidelock_outbox",
    "tidelock_triggers",
}
#: advisory locks that are named by eight letters, leases among them
LOCKS = {
    "tidechck",
    "tideclic",
    "tidecmpr",
    "tidefixc",
    "tidefold",
    "tidelake",
    "tidemend",
    "tidemirr",
    "tideoutb",
    "tidepast",
    "tideread",
    "tiderply",
    "tideshad",
    "tidetrig",
}
#: the others: of migrations, and of the sequence database
LOCK_NUMBERS = {7_140_331_586_207_113_001, 7_140_331_586_207_113_002}
#: as `pg_stat_activity` shows the connections of each part
APPLICATIONS = {
    "tidelock anchor",
    "tidelock backfill",
    "tidelock changes",
    "tidelock connect",
    "tidelock control",
    "tidelock drain",
    "tidelock explain",
    "tidelock export",
    "tidelock feed",
    "tidelock fold",
    "tidelock follower",
    "tidelock import",
    "tidelock keys",
    "tidelock load",
    "tidelock migrate",
    "tidelock mirror",
    "tidelock mirror commits",
    "tidelock mirror source",
    "tidelock partitions",
    "tidelock reads",
    "tidelock recompute",
    "tidelock recompute tables",
    "tidelock refold",
    "tidelock replay",
    "tidelock salts",
    "tidelock sequence",
    "tidelock sequencer",
    "tidelock snapshots",
    "tidelock spark",
    "tidelock start",
    "tidelock status",
    "tidelock tail",
    "tidelock ticks",
    "tidelock trace",
    "tidelock triggers",
    "tidelock triggers snapshot",
    "tidelock usage",
    "tidelock verify",
    "tidelock verify identities",
    "tidelock verify kafka",
    "tidelock verify rows",
    "tidelock webhooks",
    "tidelock webhooks data",
    "tidelock webhooks tidy",
}

#: tables of the ledger and of its readers, with their columns
TABLES = {
    "events": (
        "ingress_sequence commit_id source_timestamp received_at occurred_at tenant_id stream customer_ref "
        "resource_id row_key op quantity data causality_key correlation_id causation_id source idempotency_key "
        "key_source content_hash target target_sequence reason batch_id row_digest"
    ),
    "corrections": "target_sequence ingress_sequence",
    "identities": "digest ingress_sequence content_hash key_source",
    "commits": "commit_id first_sequence last_sequence last_source_timestamp control digest skipped form",
    "ledger_head": (
        "only_row ingress_sequence commit_id source_timestamp digest salts_version skipped sequence_source "
        "sequence_since"
    ),
    "cursors": "name sequence",
    "salts": "position salt added_at",
    "api_keys": "id key_hash tenant_id scopes streams label created_at revoked_at",
    "imports": "file_digest file_name rows_done finished updated_at",
    "fold_definitions": "only_row version definitions hashes tables",
    "changes": (
        "table_name last_sequence part first_source_timestamp last_source_timestamp rows recorded_at segment lane"
    ),
    "changes_pruned": "only_row source_timestamp",
    "fold_due": "only_row window_due idle_due",
    "triggers": (
        "id name tenant_id table_name match unmatch webhook enabled snapshot created_sequence halted_at halted_sequence"
    ),
    "trigger_secrets": "trigger_name secrets",
    "trigger_members": "trigger_id key source_timestamp",
    "outbox": (
        "id position trigger_id tenant_id key shard event_id event_type source_timestamp data status attempts "
        "failures next_attempt_at queued_at settled_at"
    ),
    "delivery_attempts": "outbox_id number sent_at seconds outcome http_status response",
    "outbox_owners": "owner expires_at",
    "outbox_shards": "shard owner expires_at",
    "trigger_definitions": "name tenant_id definition created_sequence changed_sequence",
    "trigger_watches": "trigger_id definition",
    "backfills": "backfill name position rows_done accepted duplicates conflicts rejected finished updated_at",
    "backfill_problems": "backfill row_number row_id verdict",
    "mirrored": "first_sequence last_sequence topic partition first_offset last_offset",
    "mirror_repairs": "topic partition end_offset",
    "connections": "connection name position updated_at",
}

#: tables of the fold that are always there
FOLDED = {
    "counters": "metric customer_ref period_start agg_sum agg_count agg_max agg_min agg_last watermark_ts value total",
    "counter_groups": (
        "metric customer_ref period_start group_key agg_sum agg_count agg_max agg_min agg_last watermark_ts value total"
    ),
    "adjustments": "metric customer_ref period_start ingress_sequence quantity amount reason occurred_at",
    "statements": "metric customer_ref period_start period_end value total event_count closed_sequence definition",
    "error_rows": "source ingress_sequence code message",
    "late_rows": "window ingress_sequence event_time watermark reason",
    "watermarks": "window watermark",
    "meters$closed": "metric closed_sequence through",
    "meters$distinct": "metric in_value in_total",
}


def missing(held: set[str], found: set[str]) -> set[str]:
    return held - found


_WORDS = re.compile(r"tidelock [a-z]+")


def connection_names() -> Iterator[str]:
    """What connections are named where they are opened; a text that is completed counts with its beginning."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            named: list[ast.expr | None] = []
            if isinstance(node, ast.Call):
                named += [keyword.value for keyword in node.keywords if keyword.arg == "name"]
                named += [
                    each for each in node.args if isinstance(each, ast.Constant) and _WORDS.fullmatch(str(each.value))
                ]
                named += node.args[1:2] if isinstance(node.func, ast.Name) and node.func.id == "Steady" else []
            elif isinstance(node, ast.Assign):
                named.append(node.value)
            elif isinstance(node, ast.FunctionDef):
                named += node.args.kw_defaults
            for value in named:
                text = value.values[0] if isinstance(value, ast.JoinedStr) else value
                if isinstance(text, ast.Constant) and str(text.value).startswith("tidelock "):
                    yield str(text.value).rstrip()


def test_definitions_have_the_hashes_that_were_stored() -> None:
    kept = tomllib.loads((TESTS / "kept" / "tidelock.toml").read_text(), parse_float=Decimal)
    declared = [{"meters": {f"case_{number}": meter_of(case)}} for number, case in enumerate(CASES)]
    declared += [shared_definitions()[0], {kind: kept[kind] for kind in ("streams", "meters", "windows")}]
    found = {}
    for tables in declared:
        definitions = parse_definitions(tables)
        for kind, defined in (
            ("streams", definitions.streams),
            ("meters", definitions.meters),
            ("windows", definitions.windows),
        ):
            found.update({f"{kind}.{name}": each.hash() for name, each in defined.items()})
    assert found == HASHES


def test_cursors_keep_their_names() -> None:
    found = set(re.findall(r'^(?:CURSOR|    name) = "(\w+)"$', SOURCES, re.M))
    prefixes = set(re.findall(r'"(fold:\w+:)"', SOURCES))
    assert not missing(CURSORS, found)
    assert not missing(CURSOR_PREFIXES, prefixes)


def test_channels_keep_their_names() -> None:
    heard = set(re.findall(r'LISTEN (tidelock_\w+)|_CHANNEL = "(\w+)"', SOURCES))
    told = set(re.findall(r"pg_notify\('(\w+)'", SOURCES))
    assert {name for pair in heard for name in pair if name} == CHANNELS
    assert told == CHANNELS


def test_advisory_locks_keep_their_numbers_and_no_two_are_the_same() -> None:
    letters = re.findall(r'int\.from_bytes\(b"(tide\w{4})"\)', SOURCES)
    numbers = {int(text.replace("_", "")) for text in re.findall(r"\b7_?140_?331_?586_?207_?113_?\d{3}\b", SOURCES)}
    assert sorted(letters) == sorted(LOCKS)
    assert numbers == LOCK_NUMBERS
    assert not LOCK_NUMBERS & {int.from_bytes(name.encode()) for name in LOCKS}


def test_connections_keep_their_names() -> None:
    assert not missing(APPLICATIONS, set(connection_names()))


def test_tables_keep_their_names_and_columns() -> None:
    schema = next(PACKAGE.rglob("schema.sql")).read_text()
    found = {
        f"{table}.{column}"
        for table, body in re.findall(r"^CREATE TABLE (\w+) \(\n(.*?)^\)", schema, re.M | re.S)
        for column in re.findall(r'^ {4}([a-z_]+) +["a-z]', body, re.M)
    }
    assert not missing({f"{table}.{column}" for table, columns in TABLES.items() for column in columns.split()}, found)


def test_tables_of_the_fold_keep_their_names_and_columns() -> None:
    assert {name: " ".join(table.columns) for name, table in ALWAYS.items()} == FOLDED
