"""The account the embedded Postgres runs under: Postgres refuses root, so root uses another account."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tidelock.errors import SettingsError

# Capabilities that root may have to lend, least first. Reading and searching is enough below a private directory such
# as /root; programs installed for root alone (umask 077) need the second one to be executed by another account.
_CAPABILITIES = ("dac_read_search", "dac_override")
# Checks both requirements of the server: its programs and its data.
_PROBE = '"$1" --version && cd "$2"'


@dataclass(frozen=True, slots=True)
class Account:
    """The account that runs the server's programs, and how to switch to it."""

    uid: int
    gid: int
    #: the account is not our own: we are root
    other: bool = False
    #: a capability root lends it, None when file modes are enough
    capability: str | None = None

    def run(self, command: Sequence[str | Path]) -> subprocess.CompletedProcess[str]:
        """Run a program to its end, both outputs in `stdout`."""
        uid, gid, groups = self._switch()
        return subprocess.run(
            [*self._prefix(), *map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=_environment(),
            cwd="/",
            user=uid,
            group=gid,
            extra_groups=groups,
        )

    def spawn(self, command: Sequence[str | Path], *, log: int, inherit: int) -> subprocess.Popen[bytes]:
        """Start a program in its own session: Ctrl-C in our terminal is for us, not for it."""
        uid, gid, groups = self._switch()
        return subprocess.Popen(
            [*self._prefix(), *map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=_environment(),
            cwd="/",
            pass_fds=(inherit,),
            start_new_session=True,
            user=uid,
            group=gid,
            extra_groups=groups,
        )

    def give(self, path: Path) -> None:
        if self.other:
            os.chown(path, self.uid, self.gid)

    def _prefix(self) -> list[str]:
        if self.capability is None:
            return []
        lend = f"+{self.capability}"
        become = ["--reuid", str(self.uid), "--regid", str(self.gid), "--clear-groups"]
        # Postgres looks for its own programs with access(2), which counts capabilities only under this bit.
        heed = ["--securebits", "+no_setuid_fixup"]
        return ["setpriv", *heed, *become, "--inh-caps", lend, "--ambient-caps", lend, "--"]

    def _switch(self) -> tuple[int | None, int | None, list[int] | None]:
        if self.other and self.capability is None:
            return self.uid, self.gid, []
        return None, None, None


def choose(data: Path, cluster: Path, postgres: Path) -> tuple[Account, str]:
    """The account for the server in `cluster`, and the version text of the program it can run."""
    if os.geteuid() != 0:
        return _ourselves(postgres)
    uid, gid = _owner(data, cluster)
    lendable = (None, *_CAPABILITIES) if shutil.which("setpriv") else (None,)
    for capability in lendable:
        account = Account(uid, gid, other=True, capability=capability)
        try:
            probe = account.run(["/bin/sh", "-c", _PROBE, "probe", postgres, data])
        except (OSError, subprocess.SubprocessError):
            continue  # e.g. a container that may not change its user
        if probe.returncode == 0:
            return account, probe.stdout
    raise SettingsError(
        f"Postgres does not run as root, and uid {uid}, which would run it, cannot reach {data} or {postgres}. "
        "Choose a --data directory that every user can access (chmod a+x it and its parents), run Tidelock as an "
        "ordinary user, or set DATABASE_URL to your own server.",
        field="data",
    )


def make_directory(path: Path) -> None:
    """Private to us; but root leaves it traversable for the account that will run the server inside."""
    path.mkdir(mode=0o711 if os.geteuid() == 0 else 0o700, parents=True, exist_ok=True)


def belong_to_parent(path: Path) -> None:
    """Files that root writes into a user's directory belong to that user, who may run Tidelock there later."""
    if os.geteuid() == 0:
        parent = path.parent.stat()
        os.chown(path, parent.st_uid, parent.st_gid)


def _ourselves(postgres: Path) -> tuple[Account, str]:
    account = Account(os.geteuid(), os.getegid())
    probe = account.run([postgres, "--version"])
    if probe.returncode != 0:
        raise SettingsError(f"{postgres} cannot be run here: {probe.stdout.strip()}", field="postgres.binaries")
    return account, probe.stdout


def _owner(data: Path, cluster: Path) -> tuple[int, int]:
    """The account for root: the owner of the directory, else nobody."""
    if cluster.exists() and (stat := cluster.stat()).st_uid != 0:
        return stat.st_uid, stat.st_gid
    # A mounted directory may belong to a number without a name here, under which initdb refuses to work.
    if (stat := data.stat()).st_uid != 0 and _has_name(stat.st_uid):
        return stat.st_uid, stat.st_gid
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        return 65534, 65534
    return nobody.pw_uid, nobody.pw_gid


def _has_name(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _environment() -> dict[str, str]:
    # PGDATA, PGPORT and the like are meant for another server. C: the log is read for known messages.
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return {**ours, "LC_ALL": "C", "LANGUAGE": "C"}
