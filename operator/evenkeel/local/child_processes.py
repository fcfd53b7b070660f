"""Processes that end with the one that started them, however that one ends."""

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

__all__ = ["Child", "outlive"]

log = logging.getLogger(__name__)

_PATIENCE: Final = 20.0
_RESTART_SECONDS: Final = 0.5
_LONGEST_RESTART: Final = 10.0
_LOG_BYTES: Final = 16 << 20
_POLL_SECONDS: Final = 0.1


class Child:
    """A Python module run as a process; started again when it ends by itself, ever more slowly."""

    def __init__(self, name: str, module: str, arguments: tuple[str, ...], *, log: Path) -> None:
        self.name = name
        self._restarts = 0
        self.command = (sys.executable, "-m", module, *arguments)
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None

    @property
    def info(self) -> ProcessInfo:
        """How it is."""
        process = self._process
        running = process is not None and process.returncode is None
        return ProcessInfo(process.pid if process is not None and running else None, self._restarts)

    async def start(self) -> None:
        """Start the process, and keep it running."""
        await self._launch()
        self._keeper = asyncio.create_task(self._keep())

    async def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End the process for good; who does not listen is killed."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        process = self._process
        if process is None or process.returncode is not None:
            return
        self.send(how)
        self.send(signal.SIGCONT)
        try:
            async with asyncio.timeout(_PATIENCE):
                await process.wait()
        except TimeoutError:
            log.warning("%s does not stop and is killed", self.name)
            process.kill()
            await process.wait()

    def send(self, what: signal.Signals) -> None:
        """Send a signal to the process, if it runs."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                # `Process.send_signal` polls first, and would take the exit status from the task that waits for it.
                os.kill(self._process.pid, what)

    async def _keep(self) -> None:
        wait = _RESTART_SECONDS
        while True:
            assert self._process is not None
            began = asyncio.get_running_loop().time()
            status = await self._process.wait()
            if asyncio.get_running_loop().time() - began > _LONGEST_RESTART:
                wait = _RESTART_SECONDS
            log.warning("%s ended with status %d and is started again in %g s", self.name, status, wait)
            await asyncio.sleep(wait)
            wait = min(2 * wait, _LONGEST_RESTART)
            self._restarts += 1
            try:
                await self._launch()
            except OSError as error:
                log.warning("%s cannot be started: %s", self.name, error)

    async def _launch(self) -> None:
        _turn(self._log)
        with self._log.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *die_with_parent(self.command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # Ctrl-C is not for it. A session of its own would be scheduled as one, and no thread could give way to
                # those of another store.
                process_group=0,
            )


async def outlive(running: Running, root: Path) -> None:
    """Wait until the processes of one who was killed have followed it; those that hang are killed."""
    pids = [info.pid for info in running.processes.values() if info.pid is not None and _is_of(info.pid, root)]
    until = asyncio.get_running_loop().time() + _PATIENCE
    while left := [pid for pid in pids if _is_of(pid, root)]:
        if asyncio.get_running_loop().time() > until:
            log.warning("processes of a cluster that was killed do not end and are killed: %s", left)
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(_POLL_SECONDS)


def _is_of(pid: int, root: Path) -> bool:
    """Whether a process is one of the cluster's: its command line names the cluster's directory."""
    try:
        return os.fsencode(root) in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _turn(path: Path) -> None:
    """Begin a new file where the old one is large; one old one is kept."""
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > _LOG_BYTES:
            path.replace(path.with_suffix(".log.old"))
