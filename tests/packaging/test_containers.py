"""The Dockerfile and the compose file: what can be said of them without a daemon."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from tests.packaging.installing import ROOT
from tidelock import __version__
from tidelock.app import Serving
from tidelock.cli.main import app
from tidelock.settings import TABLE, load

COMPOSE = ROOT / "compose.yaml"
SECRETS = {"POSTGRES_PASSWORD": "a", "CLICKHOUSE_PASSWORD": "b"}
SETTINGS = {option.env for option in TABLE.values()}
INSTRUCTIONS = {
    "FROM", "ENV", "WORKDIR", "RUN", "COPY", "USER", "VOLUME", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD"
}  # fmt: skip


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    text = re.sub(r"\$\{(\w+):\?[^}]+\}", lambda found: SECRETS[found[1]], COMPOSE.read_text())
    assert "$" not in text, "every variable is one that has to be set"
    found: dict[str, Any] = yaml.safe_load(text)
    return found


@pytest.fixture(scope="module")
def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\s*\\\n\s*", " ", text).splitlines()
    return [(words[0], words[2]) for line in lines if (words := line.partition(" "))[0]]


def own(compose: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The services that run a command of Tidelock."""
    for name, service in compose["services"].items():
        if service["image"].startswith("tidelock:") and "entrypoint" not in service:
            yield name, service


def test_every_service_names_what_is_there(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert {"postgres", "kafka", "clickhouse", "spark", "worker", "serve", "fold", "mirror", "load"} == set(services)
    for service in services.values():
        assert set(service.get("depends_on", {})) <= set(services)
        assert {volume.split(":")[0] for volume in service.get("volumes", ())} <= set(compose["volumes"])
        assert {config["source"] for config in service.get("configs", ())} <= set(compose["configs"])
        for name, needed in service.get("depends_on", {}).items():
            assert needed["condition"] == "service_healthy"
            assert services[name]["healthcheck"]["test"][0] == "CMD"


def test_tidelock_is_started_by_commands_and_settings_that_exist(compose: dict[str, Any], tmp_path: Path) -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    config = tmp_path / "tidelock.toml"
    config.write_text(compose["configs"]["definitions"]["content"])
    for name, service in own(compose):
        assert service["image"] == f"tidelock:{__version__}"
        assert set(service["command"]) <= set(commands), name
        assert set(service["environment"]) <= SETTINGS, name
        settings = load(config, service["environment"], {})
        assert settings.kafka.brokers == ("kafka:9092",)
        assert settings.database_url == "postgresql://tidelock:a@postgres:5432/tidelock"
        assert settings.definitions.meters


def test_the_image_runs_as_a_user_with_a_health_check_and_its_data_in_volumes(
    instructions: list[tuple[str, str]],
) -> None:
    assert {name for name, _ in instructions} <= INSTRUCTIONS
    said = {name: rest for name, rest in instructions if name != "RUN"}
    assert said["USER"] == "tidelock"
    assert "/healthz" in said["HEALTHCHECK"]
    assert said["ENTRYPOINT"] == '["tidelock"]'
    given = dict(pair.split("=", 1) for name, rest in instructions if name == "ENV" for pair in rest.split())
    settings = {name: value for name, value in given.items() if name.startswith("TIDELOCK_")}
    assert set(settings) <= SETTINGS
    for name in ("TIDELOCK_DATA", "TIDELOCK_ANCHOR"):
        assert any(settings[name].startswith(volume) for volume in re.findall(r'"([^"]+)"', said["VOLUME"]))


def test_every_base_is_pinned_to_an_exact_version(instructions: list[tuple[str, str]], compose: dict[str, Any]) -> None:
    bases = [rest.split()[0] for name, rest in instructions if name == "FROM"]
    bases += [service["image"] for _, service in compose["services"].items()]
    loose = [base for base in bases if not re.search(r":\d+\.\d+(\.\d+)*(-[\w-]+)?$", base)]
    assert (len(bases), loose) == (2 + len(compose["services"]), [])
    (brought,) = [rest for name, rest in instructions if name == "RUN" and "pip install" in rest]
    assert re.search(r"uv==\d+\.\d+\.\d+$", brought)


def test_the_image_starts_without_a_network_on_an_empty_volume(instructions: list[tuple[str, str]]) -> None:
    given = dict(pair.split("=", 1) for name, rest in instructions if name == "ENV" for pair in rest.split())
    (fetching,) = [rest for name, rest in instructions if name == "RUN" and "dev jars" in rest]
    assert given["TIDELOCK_SPARK_JARS"] == f"{fetching.split()[-1]}/jars"
    assert not given["TIDELOCK_SPARK_JARS"].startswith(given["TIDELOCK_DATA"])


async def test_the_image_asks_for_health_by_the_port_it_was_given(
    instructions: list[tuple[str, str]], server: Serving
) -> None:
    (check,) = [rest for name, rest in instructions if name == "HEALTHCHECK"]
    python, *words = json.loads(check.partition("CMD ")[2])
    assert python == "python"
    for port, alive in ((server.url.rsplit(":", 1)[1], True), ("9", False)):
        asked = await asyncio.create_subprocess_exec(
            sys.executable, *words, env={**os.environ, "TIDELOCK_PORT": port}, stderr=asyncio.subprocess.DEVNULL
        )
        assert (await asked.wait() == 0) is alive


def test_the_image_is_built_from_files_that_are_there_and_sent(instructions: list[tuple[str, str]]) -> None:
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {
        name
        for instruction, rest in instructions
        if instruction == "COPY" and not rest.startswith("--from")
        for name in rest.split()[:-1]
    }
    assert copied == sent
    assert all((ROOT / name).exists() for name in copied)


def test_docker_itself_can_read_the_compose_file() -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], capture_output=True).returncode:
        pytest.skip("docker compose is not installed")
    read = subprocess.run(
        [docker, "compose", "-f", COMPOSE, "config", "--quiet"],
        env=os.environ | SECRETS, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert read.returncode == 0, read.stderr
