"""Commands that run to completion, and daemons.

A file records the process id and start time of a daemon, so that a later process can end it, and never another one that
got the same id. A daemon has its own session: Ctrl-C reaches only the process that started it, which then ends its
daemons in order.
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

from e2e.cluster.cluster_errors import ClusterError

__all__ = ["Daemon", "run", "succeeds", "wait_until"]

T = TypeVar("T")

_POLL_SECONDS = 0.1
_GRACE_SECONDS = 5.0
_LOG_LINES = 15

# The signal survives exec. Checking the parent covers its death before the signal is armed.
_DIE_WITH_PARENT = ("setpriv", "--pdeathsig", "TERM", "--", "sh", "-c", '[ "$PPID" = "$0" ] && exec "$@"')


def run(
    *command: str | Path,
    stdin: str | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    within: float = 120.0,
) -> str:
    """Run a command, and return its output; ClusterError with stderr if it fails."""
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
    """Whether a command succeeds."""
    return subprocess.run([str(part) for part in command], capture_output=True, check=False).returncode == 0


def wait_until(what: str, condition: Callable[[], T], *, within: float, why: Callable[[], str] = str) -> T:
    """Wait for the first truthy answer, and return it; ClusterError with the reason after a timeout."""
    deadline = time.monotonic() + within
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise ClusterError(f"not within {within:g} s: {what}. {why()}".rstrip())
        time.sleep(_POLL_SECONDS)
    return answer


class Daemon:
    """A program in the background, with `NAME.log` and `NAME.pid` in its folder."""

    def __init__(self, name: str, *, folder: Path) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._record = folder / f"{name}.pid"
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        try:
            pid, started = map(int, self._record.read_text().split())
        except (FileNotFoundError, ValueError):
            return None
        return pid if _start_time(pid) == started else None

    def start(self, command: Sequence[str | Path], *, dies_with_us: bool = False) -> None:
        """Start the program; with `dies_with_us` it ends with this process, even if that is killed."""
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
        """Terminate the program, and kill it after the grace period."""
        self._signal(signal.SIGTERM)
        if not self._gone_within(grace):
            self.kill()
        self._record.unlink(missing_ok=True)

    def kill(self) -> None:
        """Kill the program, and wait until it is gone."""
        self._signal(signal.SIGKILL)
        if not self._gone_within(30):
            raise ClusterError(f"{self.name} (process {self.pid}) survives SIGKILL")
        self._record.unlink(missing_ok=True)

    def last_words(self) -> str:
        """Return the end of the log."""
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
    """Return when a process was started, in kernel ticks; None if it is dead or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])
