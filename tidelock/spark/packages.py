"""Jars: resolved once by Spark's own resolver, then kept in the data directory.

Without the PostgreSQL JDBC driver (no network at the first start) the fold works, slower: ranges are then read through
the driver process.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tidelock.errors import Unreachable
from tidelock.postgres.account import belong_to_parent, make_directory

logger = logging.getLogger(__name__)

COORDINATES = "org.postgresql:postgresql:42.7.7"
NAME = "postgresql-42.7.7.jar"

_RESOLVE_S = 90
_RESOLVE_SET_S = 300
#: the user's Spark settings that say where jars come from
_RESOLVER_CONF = ("spark.jars.repositories", "spark.jars.ivySettings")


def jdbc_driver(
    data: Path, submit: Path, java_home: Path, conf: Mapping[str, str], *, fetched: Path | None = None
) -> Path | None:
    """The driver's jar: among those fetched beforehand, or in the data directory, downloaded there if it is missing;
    None, and a warning, if it cannot be."""
    if fetched is not None and zipfile.is_zipfile(fetched / NAME):
        return fetched.absolute() / NAME
    jar = data.absolute() / "jars" / NAME
    if zipfile.is_zipfile(jar):
        return jar
    make_directory(data)
    jar.parent.mkdir(exist_ok=True)
    belong_to_parent(jar.parent)
    # Downloaded under a temporary name and renamed: two processes that start together both get a complete file.
    with tempfile.TemporaryDirectory(dir=jar.parent, prefix="fetching-", ignore_cleanup_errors=True) as aside:
        excludes = ["org.checkerframework:checker-qual"]
        problem = _resolve(
            Path(aside), [COORDINATES], submit, java_home, conf=conf, patience_s=_RESOLVE_S, excludes=excludes
        )
        found = next(Path(aside).glob(f"jars/*{NAME}"), None)
        if found is None:
            logger.warning(
                "no PostgreSQL driver for Spark: %s could not be downloaded (%s). The ledger is read without it, "
                "more slowly. Start once with network access, or put the driver's jar at %s.",
                COORDINATES, problem, jar,
            )  # fmt: skip
            return None
        belong_to_parent(found)
        os.replace(found, jar)
    return jar


def jar_set(
    data: Path,
    name: str,
    packages: Sequence[str],
    submit: Path,
    *,
    java_home: Path,
    conf: Mapping[str, str],
    fetched: Path | None = None,
) -> list[Path]:
    """Packages and all they need, in a directory of their own: among those fetched beforehand, or below `jars` in the
    data directory, downloaded there if it is missing. Raises Unreachable if they cannot be."""
    if fetched is not None and (fetched / name).is_dir():
        return sorted((fetched.absolute() / name).glob("*.jar"))
    directory = data.absolute() / "jars" / name
    if not directory.exists():
        make_directory(data)
        directory.parent.mkdir(exist_ok=True)
        belong_to_parent(directory.parent)
        # Renamed when complete, as above; a second process finds the set of the first.
        with tempfile.TemporaryDirectory(dir=directory.parent, prefix="fetching-", ignore_cleanup_errors=True) as aside:
            problem = _resolve(Path(aside), packages, submit, java_home, conf=conf, patience_s=_RESOLVE_SET_S)
            found = Path(aside) / "jars"
            if not all(any(found.glob(f"*_{jar_name(package)}")) for package in packages):
                what = ", ".join(packages)
                raise Unreachable(
                    f"{what} could not be downloaded ({problem}); the first time, network access is needed."
                )
            with suppress(OSError):
                os.rename(found, directory)
            for path in (directory, *directory.iterdir()):
                belong_to_parent(path)
    return sorted(directory.glob("*.jar"))


#: how lines begin in which Spark says why
_REASONS = ("Server access error", "unresolved dependency", "Caused by:")


def jar_name(coordinates: str) -> str:
    _, artifact, version = coordinates.split(":")
    return f"{artifact}-{version}.jar"


def _resolve(
    ivy: Path,
    packages: Sequence[str],
    submit: Path,
    java_home: Path,
    conf: Mapping[str, str],
    patience_s: float,
    excludes: Sequence[str] = (),
) -> str:
    """Let Spark resolve packages into `ivy`. Returns what went wrong, if anything.

    `pyspark-shell` is a program that ends as soon as its input does, so all that this does is resolve.
    """
    given = {name: conf[name] for name in _RESOLVER_CONF if name in conf} | {
        "spark.jars.ivy": str(ivy),
        "spark.jars.packages": ",".join(packages),
        "spark.jars.excludes": ",".join(excludes),
        "spark.master": "local[1]",
    }
    flags = [part for name, value in given.items() for part in ("--conf", f"{name}={value}")]
    # Spark would look up this machine's name, which need not resolve, as in a build of an image.
    environ = {"SPARK_LOCAL_IP": "127.0.0.1"} | os.environ
    environ |= {"JAVA_HOME": str(java_home), "_PYSPARK_DRIVER_CONN_INFO_PATH": str(ivy / "gateway")}
    try:
        told = subprocess.run(
            [submit, *flags, "pyspark-shell"],
            env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", timeout=patience_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"no response within {patience_s} s"
    except OSError as error:
        return str(error)
    lines = [line.strip() for line in told.stdout.splitlines()]
    logger.debug("resolving %s: %s", packages, told.stdout)
    shutil.rmtree(ivy / "cache", ignore_errors=True)
    return next(
        (line for line in lines if line.startswith(_REASONS)),
        "see --log-level debug",
    )
