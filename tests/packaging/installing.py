"""What users get: Tidelock built and installed as they would, with the versions of the lock file."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
UV = Path(sys.executable).with_name("uv")


def uv(*words: object) -> None:
    """What `make setup` has brought is in the cache; where it is not any more, it is fetched."""
    for offline in (["--offline"], []):
        ran = subprocess.run([UV, *map(str, words), *offline], cwd=ROOT, capture_output=True, text=True, check=False)
        if ran.returncode == 0:
            return
    raise AssertionError(f"uv {words}:\n{ran.stderr}")


@dataclass(frozen=True)
class Built:
    """A wheel, the sdist that it was built from, and the versions to install it with."""

    wheel: Path
    sdist: Path
    constraints: Path


def build(here: Path) -> Built:
    uv("build", "--quiet", "--python", sys.executable, "--out-dir", here)
    constraints = here / "constraints.txt"
    uv("export", "--quiet", "--frozen", "--all-extras", "--no-emit-project", "--no-hashes", "-o", constraints)
    (wheel,), (sdist,) = here.glob("*.whl"), here.glob("*.tar.gz")
    return Built(wheel, sdist, constraints)


class Installed:
    """A virtual environment with nothing in it but the wheel and what it asks for."""

    def __init__(self, built: Built, here: Path, extras: str = "", *, python: Path = Path(sys.executable)) -> None:
        self._bin = here / "bin"
        uv("venv", "--quiet", "--python", python, here)
        uv("pip", "install", "--quiet", "--python", here, "-c", built.constraints, f"{built.wheel}{extras}")

    def run(self, program: str, *words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("TIDELOCK_", "PYTHON"))}
        clean.pop("DATABASE_URL", None)
        return subprocess.run(
            [self._bin / program, *map(str, words)], cwd=cwd, env=clean, capture_output=True, text=True, timeout=120,
            check=False,
        )  # fmt: skip
