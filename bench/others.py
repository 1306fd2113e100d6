"""Others: stream processors that make the same windows, each in a virtual environment of its own."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from bench.harness import Say
from bench.runs import Figures
from tidelock.errors import Difference, Unreachable

#: the directory of the export that all of them read
EXPORT = "events-windows"
_SCRIPTS = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class _Other:
    """A stream processor."""

    name: str
    script: str
    #: what pip installs
    packages: str
    #: it gets so many events at most: what Python does for each takes long
    events_max: int


_OTHERS = (
    _Other("bytewax", "bytewax_peer.py", '"bytewax==0.21.*" pyarrow', 500_000),
    _Other("flink", "flink_peer.py", '"apache-flink>=2,<3"', 10_000_000),
)


@dataclass(frozen=True, slots=True)
class Others:
    """Those whose environments are in a directory; None: nobody asked for any."""

    environments: Path | None
    #: has the export, and is written to
    directory: Path
    size_s: int
    tolerance_s: int
    cores: int

    def figures(self, events: int, fold_s: float, say: Say) -> Figures:
        found: Figures = {}
        for other in _OTHERS:
            rate = None if self.environments is None else self._rate(other, self.environments, events, say)
            found[f"{other.name}EventsPerSecond"] = None if rate is None else round(rate)
            ratio = None if rate is None else round(events / fold_s / rate, 2)
            found[f"foldRatioTo{other.name.capitalize()}"] = ratio
        return found

    def _rate(self, other: _Other, environments: Path, events: int, say: Say) -> float | None:
        """Events a second; None: it is not installed, which is said."""
        place = environments / other.name
        python = place / "bin" / "python"
        if not python.exists():
            say(
                f"  {other.name} is not measured, for there is no {python}: python3 -m venv {place} && "
                f"{place}/bin/pip install {other.packages}"
            )
            return None
        most = min(events, other.events_max)
        given = [self.directory / EXPORT, self.directory / other.name, most, self.size_s, self.tolerance_s, self.cores]
        command = [str(part) for part in (python, _SCRIPTS / other.script, *given)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode:
            raise Unreachable(f"{other.name} did not do its part: {ran.stderr.strip()[-500:]}")
        told = json.loads(ran.stdout.splitlines()[-1])
        # It may drop what is late here, one event in a thousand, and nothing else.
        if not most * 0.998 <= told["within"] <= most:
            raise Difference(f"{other.name}'s windows hold {told['within']} events of {most}")
        say(f"  {other.name}: {most / told['seconds']:,.0f} ev/s")
        return float(most / told["seconds"])
