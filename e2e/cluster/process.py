"""Programs that are run to their end, and programs that stay.

A daemon is remembered in a file, by process id and start time, so that whoever comes later can end it, and never ends
another process that got its number. Daemons are sessions of their own: Ctrl-C reaches only whoever
started them, who then ends them in their order.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from e2e.cluster.errors import ClusterError

__all__ = ["Daemon", "run", "succeeds", "wait_until"]

T = TypeVar("T")

_POLL_SECONDS = 0.1
_GRACE_SECONDS = 5.0
_LOG_LINES = 15

# The signal survives exec. The look at the parent closes the gap in which it dies before the signal is armed.
_DIE_WITH_PARENT = ("setpriv", "--pdeathsig", "TERM", "--", "sh", "-c", '[ "$PPID" = "$0" ] && exec "$@"')


def run(
    *command: str | Path,
    stdin: str | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    within: float = 120.0,
) -> str:
    """What the command prints; an error with what it complained of where it fails."""
    argv = [str(part) for part in command]
    try:
        done = subprocess.run(
            argv, input=stdin, cwd=cwd, env=env, timeout=within, capture_output=True, text=True, check=True
        )
    except FileNotFoundError as error:
        raise ClusterError(f"{error.filename} is missing") from None
    except subprocess.TimeoutExpired:
        raise ClusterError(f"`{' '.join(argv)}` did not end within {within:g} s") from None
    except subprocess.CalledProcessError as error:
        said = (error.stderr.strip() or error.stdout.strip())[-4000:]
        raise ClusterError(f"`{' '.join(argv)}` failed with {error.returncode}: {said}") from None
    return done.stdout


def succeeds(*command: str | Path) -> bool:
    """Whether the command ends well, whatever it says."""
    return subprocess.run([str(part) for part in command], capture_output=True, check=False).returncode == 0


def wait_until(what: str, condition: Callable[[], T], *, within: float, why: Callable[[], str] = str) -> T:
    """The first answer that is not false; after so many seconds an error that says what never came, and why."""
    deadline = time.monotonic() + within
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise ClusterError(f"not within {within:g} s: {what}. {why()}".rstrip())
        time.sleep(_POLL_SECONDS)
    return answer


class Daemon:
    """One program in the background, with `NAME.log` and `NAME.pid` in its folder."""

    def __init__(self, name: str, *, folder: Path) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._record = folder / f"{name}.pid"
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process while it runs."""
        try:
            pid, started = map(int, self._record.read_text().split())
        except (FileNotFoundError, ValueError):
            return None
        return pid if _start_time(pid) == started else None

    def start(self, command: Sequence[str | Path], *, dies_with_us: bool = False) -> None:
        """Start it. Where it `dies_with_us`, not even SIGKILL of this process leaves it behind."""
        if self.pid is not None:
            raise ClusterError(f"{self.name} runs already, as process {self.pid}")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        prefix = (*_DIE_WITH_PARENT, str(os.getpid())) if dies_with_us else ()
        argv = [str(part) for part in (*prefix, *command)]
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._record.write_text(f"{self._child.pid} {_start_time(self._child.pid)}")

    def stop(self, *, grace: float = _GRACE_SECONDS) -> None:
        """End it in good order, or by force after the time of grace; nothing happens when it is gone already."""
        self._signal(signal.SIGTERM)
        if not self._gone_within(grace):
            self.kill()
        self._record.unlink(missing_ok=True)

    def kill(self) -> None:
        """End it as a power cut would, and wait until it is gone."""
        self._signal(signal.SIGKILL)
        if not self._gone_within(30):
            raise ClusterError(f"{self.name} (process {self.pid}) survives SIGKILL")
        self._record.unlink(missing_ok=True)

    def last_words(self) -> str:
        """The end of its log."""
        with contextlib.suppress(FileNotFoundError):
            lines = self.log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
            return f"From {self.log}:\n" + "\n".join(lines)
        return f"{self.log} was never written"

    def _signal(self, sign: signal.Signals) -> None:
        pid = self.pid
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sign)

    def _gone_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.pid is not None:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        if self._child is not None:
            self._child.wait()
        return True


def _start_time(pid: int) -> int | None:
    """When a process was started, in the kernel's ticks; None for one that is dead or only waits to be reaped."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])
