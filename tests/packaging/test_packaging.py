"""The wheel and the sdist: complete, and enough to install and use."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
import tomllib
import zipfile
from pathlib import Path
from shutil import which

import pytest

from tests.packaging.installing import ROOT, Built, Installed, build
from tidelock import __version__


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("dist"))


def files_of(*under: str) -> set[str]:
    """What belongs to the project there, committed or not."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *under], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return {name for name in listed.stdout.splitlines() if (ROOT / name).is_file()}


def test_the_wheel_holds_the_package_with_every_data_file_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == files_of("tidelock")
    kinds = {Path(name).suffix for name in names}
    assert {".sql", ".toml", ".properties", ".typed"} <= kinds


def test_the_sdist_holds_the_project(built: Built) -> None:
    top = f"tidelock-{__version__}/"
    with tarfile.open(built.sdist) as sdist:
        names = {name.removeprefix(top) for name in sdist.getnames()}
    assert files_of("tidelock", "tests", "docs") <= names
    assert {"LICENSE", "README.md", "Makefile", "pyproject.toml", "uv.lock", "PKG-INFO"} <= names


def test_the_base_install_is_the_client_and_says_so(built: Built, tmp_path: Path) -> None:
    base = Installed(built, tmp_path / "base")
    used = base.run("python", "-c", "import tidelock.client as c; print(c.Client, c.AsyncClient)", cwd=tmp_path)
    assert (used.returncode, used.stderr) == (0, "")
    command = base.run("tidelock", "--version", cwd=tmp_path)
    assert command.returncode == 2
    assert "pip install 'tidelock[server]'" in command.stderr
    assert "Traceback" not in command.stderr


def test_the_server_install_gives_a_command_that_works(built: Built, tmp_path: Path) -> None:
    server = Installed(built, tmp_path / "server", "[server]")
    (tmp_path / "events.jsonl").write_text('{"stream": "calls", "customerRef": "a", "quantity": "1"}\n')
    assert server.run("tidelock", "--version", cwd=tmp_path).stdout == f"tidelock {__version__}\n"
    doctor = server.run("tidelock", "doctor", "--port", 0, "--json", cwd=tmp_path)
    findings = {finding["name"]: finding for finding in map(json.loads, doctor.stdout.splitlines())}
    assert findings["spark"]["ok"], findings
    assert str(tmp_path) in findings["postgres"]["detail"], "the Postgres is that of this very install"
    imported = server.run("tidelock", "import", "events.jsonl", "--data", "data", "--json", cwd=tmp_path)
    assert imported.returncode == 0, imported.stderr
    assert json.loads(imported.stdout)["accepted"] == 1


def pythons() -> dict[str, Path]:
    """Every Python on this machine that Tidelock may run on, by its minor version."""
    found: dict[str, Path] = {}
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for minor in range(11, 20):
        name = f"3.{minor}"
        places = [*sorted(pyenv.glob(f"{name}.*/bin/python{name}")), *map(Path, filter(None, [which(f"python{name}")]))]
        for place in places:
            if subprocess.run([place, "-c", "import ssl"], capture_output=True, check=False).returncode == 0:
                found[name] = place
                break
    return found


def test_every_python_that_is_listed_and_found_runs_what_is_installed(built: Built, tmp_path: Path) -> None:
    """The base install; with the server the same Pythons were tried by hand, for that takes minutes."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    prefix = "Programming Language :: Python :: 3."
    listed = {name.rpartition(" ")[2] for name in project["classifiers"] if name.startswith(prefix)}
    assert project["requires-python"] == f">={min(listed)}"
    found = {name: python for name, python in pythons().items() if name in listed}
    assert found, "at least the Python that runs this"
    for name, python in found.items():
        installed = Installed(built, tmp_path / name, python=python)
        told = "import sys, tidelock.client as c; print('%d.%d' % sys.version_info[:2], c.Client.__name__)"
        ran = installed.run("python", "-c", told, cwd=tmp_path)
        assert (ran.stdout, ran.stderr) == (f"{name} Client\n", "")
