"""A broker that asks for a password over TLS: mirror, proof and loader reach it by the options that are passed on."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mirror.mirrors import consume, mirror_once, settings_for
from tests.recording import record, sequencing
from tests.sinks.stores import TestLake, loading
from tidelock.errors import Unreachable
from tidelock.mirror import cluster
from tidelock.mirror.broker import Broker
from tidelock.mirror.cluster import KafkaCluster
from tidelock.mirror.proof import MirrorProof
from tidelock.postgres.database import Database
from tidelock.spark.java import java_home
from tidelock.spark.runtime import Spark

PASSWORD = 'se"cr\\et;1'
_ESCAPED = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
_LOGIN = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_tidelock="{_ESCAPED}"'


@pytest.fixture
def certificate(jars: Path, tmp_path: Path) -> Path:
    """Of a broker on this machine, in a store of keys, and as others are given it."""
    # keytool by its class: a Java from a wheel has no other programs.
    java = str(java_home(None, jars) / "bin" / "java")
    tool = [java, "-m", "java.base/sun.security.tools.keytool.Main", "-keystore", str(tmp_path / "keys.p12")]
    common = ["-storepass", "secret", "-alias", "broker"]
    made = ["-genkeypair", "-keyalg", "EC", "-dname", "CN=broker", "-ext", "san=ip:127.0.0.1", "-storetype", "PKCS12"]
    subprocess.run([*tool, *made, *common], check=True, capture_output=True)
    pem = tmp_path / "broker.pem"
    subprocess.run([*tool, "-exportcert", "-rfc", "-file", str(pem), *common], check=True, capture_output=True)
    return pem


@pytest.fixture
def options(certificate: Path) -> dict[str, str]:
    return {
        "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "tidelock",
        "sasl.password": PASSWORD, "ssl.ca.location": str(certificate),
    }  # fmt: skip


@pytest.fixture
def guarded(jars: Path, tmp_path: Path, options: dict[str, str]) -> Iterator[Broker]:
    made = Broker(tmp_path / "kafka", jars)
    properties = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_SSL,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        # A file of properties takes a backslash away.
        "listener.name.plaintext.plain.sasl.jaas.config": (
            f'{_LOGIN} username="tidelock" password="{_ESCAPED}";'.replace("\\", "\\\\")
        ),
        "ssl.keystore.location": str(tmp_path / "keys.p12"),
        "ssl.keystore.password": "secret",
        # It speaks to itself.
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": options["ssl.ca.location"],
    }
    made.start(properties=properties, options=options)
    yield made
    made.stop()


@pytest.mark.timeout(240)
async def test_what_is_passed_on_opens_a_guarded_broker_for_mirror_proof_and_loader(
    spark: Spark,
    database: Database,
    guarded: Broker,
    options: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = settings_for(guarded, options=options)
    async with sequencing(database) as sequencer:
        await record(sequencer, *({"idempotencyKey": f"{number}"} for number in range(20)))
    await asyncio.to_thread(mirror_once, database, settings)
    assert [message.sequence for message in await asyncio.to_thread(consume, settings)] == list(range(1, 21))
    proof = MirrorProof(database, settings)
    await asyncio.to_thread(proof.compare, lambda *_: None)
    assert proof.check().ok, proof.check().detail
    lake = TestLake(tmp_path / "lake")
    with loading(spark, database, lake, kafka=settings.kafka) as load:
        await asyncio.to_thread(load.step, 100)
    assert len(lake.read("kafka_offset")) == 20
    monkeypatch.setattr(cluster, "ANSWER_S", 3.0)
    stranger = settings_for(guarded, options={**options, "sasl.password": "wrong"})
    with pytest.raises(Unreachable, match="uthentication failed"):
        await asyncio.to_thread(KafkaCluster(stranger.kafka, 0).look)
