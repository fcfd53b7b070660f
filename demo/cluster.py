"""A local cluster of six stores, controlled with the CLI's commands.

The cluster watches this process and stops when it ends.
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

from demo.interrupts import deferred_interrupts
from evenkeel.cli.local_session import LocalSession, layout_of
from evenkeel.errors import InvalidInputError
from evenkeel.metastore.etcd_metastore import EtcdMetastore
from evenkeel.metastore.etcd_settings import EtcdSettings

__all__ = ["NAME", "DemoCluster"]

NAME: Final = "main"
T = TypeVar("T")


class DemoCluster:
    """A local cluster in its own directory, which is removed in the end."""

    def __init__(self, directory: Path, *, up: Sequence[str]) -> None:
        """`up` are the arguments of `evenkeel local up`."""
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
        """The session for CLI commands."""
        assert self._session is not None, "it is connected while it runs"
        return self._session

    def command(self, *arguments: str) -> str:
        """Run an `evenkeel` command; return its output."""
        with deferred_interrupts():
            process = subprocess.Popen(
                [str(Path(sys.executable).parent / "evenkeel"), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "EVENKEEL_LOCAL": str(self.directory)},
                # The command must not receive Ctrl-C: it finishes what it started, and `local down` stops that.
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
        """Run a CLI command in the cluster's session."""
        return self.do(work(self.session))

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the cluster's loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def begin(self, work: Coroutine[Any, Any, None]) -> Callable[[], None]:
        """Start a coroutine in the background; return a function that ends it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        return lambda: None if future.cancel() else future.result()
