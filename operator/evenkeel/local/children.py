"""Processes that end with the one that started them, however that one ends."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from pathlib import Path
from typing import Final

from evenkeel.metastore.server import die_with_parent

__all__ = ["Child"]

_PATIENCE: Final = 20.0
_RESTART_SECONDS: Final = 0.5
_LONGEST_RESTART: Final = 10.0


class Child:
    """A Python module run as a process; started again when it ends by itself."""

    def __init__(self, name: str, module: str, arguments: tuple[str, ...], *, log: Path) -> None:
        self.name = name
        self.restarts = 0
        self._command = (sys.executable, "-m", module, *arguments)
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._down = False

    @property
    def pid(self) -> int | None:
        """The process, while there is one."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    async def start(self) -> None:
        """Start the process, and keep it running."""
        self._down = False
        await self._launch()
        self._keeper = asyncio.create_task(self._keep())

    async def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End the process for good; who does not listen is killed."""
        self._down = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(how)
        try:
            async with asyncio.timeout(_PATIENCE):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _keep(self) -> None:
        wait = _RESTART_SECONDS
        while True:
            assert self._process is not None
            began = asyncio.get_running_loop().time()
            await self._process.wait()
            if asyncio.get_running_loop().time() - began > _LONGEST_RESTART:
                wait = _RESTART_SECONDS
            await asyncio.sleep(wait)
            wait = min(2 * wait, _LONGEST_RESTART)
            self.restarts += 1
            await self._launch()

    async def _launch(self) -> None:
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *die_with_parent(self._command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
