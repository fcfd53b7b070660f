"""Child processes that are restarted when they exit, and that end with their parent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Final

from evenkeel.local.cluster_directory import ProcessInfo, Running
from evenkeel.metastore.etcd_server import die_with_parent

__all__ = ["Child", "await_orphans"]

log = logging.getLogger(__name__)

_TIMEOUT: Final = 20.0
_RESTART_SECONDS: Final = 0.5
_LONGEST_RESTART: Final = 10.0
_LOG_BYTES: Final = 16 << 20
_POLL_SECONDS: Final = 0.1


class Child:
    """A Python module that runs as a process and is restarted with backoff when it exits."""

    def __init__(self, name: str, module: str, arguments: tuple[str, ...], *, log: Path) -> None:
        self.name = name
        self._restarts = 0
        self.command = (sys.executable, "-m", module, *arguments)
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._restarter: asyncio.Task[None] | None = None

    @property
    def info(self) -> ProcessInfo:
        """The process id and the number of restarts."""
        process = self._process
        running = process is not None and process.returncode is None
        return ProcessInfo(process.pid if process is not None and running else None, self._restarts)

    async def start(self) -> None:
        """Start the process, and restart it whenever it exits."""
        await self._launch()
        self._restarter = asyncio.create_task(self._restart_on_exit())

    async def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Stop the process and do not restart it; kill it if it does not exit in time."""
        if self._restarter is not None:
            self._restarter.cancel()
            await asyncio.gather(self._restarter, return_exceptions=True)
        process = self._process
        if process is None or process.returncode is not None:
            return
        self.send(how)
        self.send(signal.SIGCONT)
        try:
            async with asyncio.timeout(_TIMEOUT):
                await process.wait()
        except TimeoutError:
            log.warning("%s did not stop within %g s; killing it", self.name, _TIMEOUT)
            process.kill()
            await process.wait()

    def send(self, what: signal.Signals) -> None:
        """Send a signal to the process if it is running."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                # `Process.send_signal` polls first, which would take the exit status from the waiting task.
                os.kill(self._process.pid, what)

    async def _restart_on_exit(self) -> None:
        wait = _RESTART_SECONDS
        while True:
            assert self._process is not None
            started = asyncio.get_running_loop().time()
            status = await self._process.wait()
            if asyncio.get_running_loop().time() - started > _LONGEST_RESTART:
                wait = _RESTART_SECONDS
            log.warning("%s exited with status %d; restarting it in %g s", self.name, status, wait)
            await asyncio.sleep(wait)
            wait = min(2 * wait, _LONGEST_RESTART)
            self._restarts += 1
            try:
                await self._launch()
            except OSError as error:
                log.warning("cannot start %s: %s", self.name, error)

    async def _launch(self) -> None:
        _rotate(self._log)
        with self._log.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *die_with_parent(self.command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # Its own group, so that Ctrl-C does not reach it. Its own session would be scheduled as a unit, and the
                # threads of different stores could not yield to each other.
                process_group=0,
            )


async def await_orphans(running: Running, root: Path) -> None:
    """Wait until the processes of a supervisor that was killed have ended; kill those that do not end in time."""
    pids = [info.pid for info in running.processes.values() if info.pid is not None and _is_of(info.pid, root)]
    deadline = asyncio.get_running_loop().time() + _TIMEOUT
    while left := [pid for pid in pids if _is_of(pid, root)]:
        if asyncio.get_running_loop().time() > deadline:
            log.warning("processes of the previous supervisor did not end within %g s; killing %s", _TIMEOUT, left)
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(_POLL_SECONDS)


def _is_of(pid: int, root: Path) -> bool:
    """Whether a process belongs to the cluster: its command line contains the cluster's directory."""
    try:
        return os.fsencode(root) in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _rotate(path: Path) -> None:
    """Rotate a large log file; one old file is kept."""
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > _LOG_BYTES:
            path.replace(path.with_suffix(".log.old"))
