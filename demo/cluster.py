"""Six stores on this machine, started and told what to do by the same verbs as everywhere.

The cluster ends with this process, however that ends: it watches us.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from demo.interrupts import held
from evenkeel.cli.local_session import LocalSession, layout_of
from evenkeel.errors import InvalidInputError
from evenkeel.metastore.etcd_metastore import EtcdMetastore
from evenkeel.metastore.etcd_settings import EtcdSettings

__all__ = ["NAME", "DemoCluster"]

NAME: Final = "main"
T = TypeVar("T")


class DemoCluster:
    """A local cluster in a directory of its own; nothing is left of it in the end."""

    def __init__(self, directory: Path, *, up: Sequence[str]) -> None:
        """`up`: how `evenkeel local up` is called."""
        self.directory = directory
        self._up = up
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cluster", daemon=True)
        self._stack = AsyncExitStack()
        self._session: LocalSession | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.command("local", "up", *self._up, "--with-parent")
            self.do(self._connect())
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def _leave(self) -> None:
        self.do(self._stack.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self.command("local", "down", "--wipe")

    async def _connect(self) -> None:
        layout = layout_of(self.directory)
        running = layout.running()
        assert running is not None, "it was started"
        settings = EtcdSettings(endpoints=(running.etcd,))
        self._session = LocalSession(layout, await self._stack.enter_async_context(EtcdMetastore(settings)))

    @property
    def session(self) -> LocalSession:
        """What verbs work with."""
        assert self._session is not None, "it is connected while it runs"
        return self._session

    def command(self, *arguments: str) -> str:
        """Run a command of `evenkeel`; what it printed."""
        with held():
            process = subprocess.Popen(
                [str(Path(sys.executable).parent / "evenkeel"), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "EVENKEEL_LOCAL": str(self.directory)},
                # Ctrl-C is not for it: what it has begun it brings to an end, and can then be told to stop.
                start_new_session=True,
            )
        try:
            output, errors = process.communicate()
        except BaseException:
            process.communicate()
            raise
        if process.returncode != 0:
            raise InvalidInputError(f"evenkeel {' '.join(arguments)}: {(errors or output).strip()}")
        return output

    def verb(self, work: Callable[[LocalSession], Coroutine[Any, Any, T]]) -> T:
        """Do something in the cluster's session, at once."""
        return self.do(work(self.session))

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something on the cluster's loop, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def begin(self, work: Coroutine[Any, Any, None]) -> Callable[[], None]:
        """Let something run beside everything; returns how to end it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        return lambda: None if future.cancel() else future.result()
