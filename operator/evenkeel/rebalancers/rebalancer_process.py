"""Run a user's class in a child process, so that it cannot block the operator's loop, exhaust its memory or its Lease.

Request and reply are memory files (memfd) instead of pipes: neither side can block on a full pipe, and the limit on
file size bounds both the reply and the class's output. The child leads a process group. A pidfd signals its exit
without reaping it, so its process id is still valid when the whole group is killed; only then is it reaped. This
happens in every case: answer, failure, timeout and cancellation.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

import evenkeel
from evenkeel.errors import RebalancerError
from evenkeel.model.views import Assignment, CurrentState, StoresView, TableView
from evenkeel.rebalancers.rebalancer_api import MAX_CONTEXT
from evenkeel.rebalancers.rebalancer_messages import Answer, Failure, Reply, Request, pack, unpack

__all__ = ["FOLDERS", "Limits", "compute_in_child"]

_PRINTED = 2000
FOLDERS = "EVENKEEL_REBALANCERS"
"""Environment variable with the folders of users' classes, separated as in PYTHONPATH."""
_PASSED_ON = ("LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "TZ")


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a user's class, and where its modules are found."""

    seconds: float = 10.0
    """Wall-clock seconds for one computation, including the start of the interpreter."""
    memory: int = 1 << 30
    """Bytes of address space beyond the interpreter's own."""
    path: tuple[str, ...] = ()
    """Folders that are searched first for modules: where ConfigMaps with users' classes are mounted."""


async def compute_in_child(
    class_name: str,
    table: TableView,
    *,
    previous: Assignment,
    stores: StoresView,
    current: CurrentState,
    context: bytes | None,
    limits: Limits,
) -> tuple[Assignment, bytes | None]:
    """Run one computation of `package.module:Name`; return the unvalidated assignment and the context to save."""
    request = Request(
        class_name=class_name,
        table=table,
        previous=pack(previous),
        stores=stores,
        current=current,
        context=context,
        memory=limits.memory,
        answer_bytes=_answer_bytes(table, stores),
        seconds=limits.seconds,
    )
    reply = await _exchange(request, limits)
    if isinstance(reply, Failure):
        raise RebalancerError(f"class {class_name} {reply.what}{_quoted('its traceback', reply.trace)}")
    try:
        return unpack(reply.assignment), reply.context
    except ValueError as error:
        raise RebalancerError(f"class {class_name} returned a malformed assignment: {error}") from None


def _answer_bytes(table: TableView, stores: StoresView) -> int:
    matrix = 8 * table.partitions * (table.replicas + 1)
    return matrix + 512 * len(stores.stores) + 2 * MAX_CONTEXT + (1 << 20)


async def _exchange(request: Request, limits: Limits) -> Reply:
    name = request.class_name
    with _memory_file("request") as asked, _memory_file("reply") as replied, _memory_file("printed") as printed:
        os.pwrite(asked, msgspec.msgpack.encode(request), 0)
        status = await _run(asked, replied, printed, limits=limits)
        output = _quoted("it printed", _content(printed)[-_PRINTED:].decode(errors="replace"))
        if status is None:
            raise RebalancerError(f"class {name} timed out after {limits.seconds:g} s and was killed{output}")
        if status != 0:
            raise RebalancerError(f"class {name} {_ending(status)} without a result{output}")
        try:
            return msgspec.msgpack.decode(_content(replied), type=Answer | Failure)
        except (ValueError, RecursionError):
            raise RebalancerError(f"class {name} ended without a readable result{output}") from None


async def _run(asked: int, replied: int, printed: int, *, limits: Limits) -> int | None:
    """Return the child's exit status, negative for a signal; None if it timed out."""
    child = subprocess.Popen(  # noqa: ASYNC220 - blocks only for the exec, like asyncio's own subprocess
        [sys.executable, "-P", "-m", "evenkeel.rebalancers.rebalancer_child", str(asked), str(replied)],
        stdin=subprocess.DEVNULL,
        stdout=printed,
        stderr=printed,
        pass_fds=(asked, replied),
        start_new_session=True,
        cwd="/",
        env=_environment(limits),
    )
    ended = False
    try:
        ended = await _has_ended(child.pid, limits.seconds)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        status = child.wait()
    return status if ended else None


async def _has_ended(pid: int, seconds: float) -> bool:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    pidfd = os.pidfd_open(pid)
    loop.add_reader(pidfd, ended.set)
    try:
        async with asyncio.timeout(seconds):
            await ended.wait()
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)
    return True


def _environment(limits: Limits) -> Mapping[str, str]:
    """Return the child's environment: only locale and paths, because the operator's own may hold credentials.

    With a fixed hash seed, two operators that run the same class on the same inputs get the same plan.
    """
    inherited = os.pathsep.join(os.environ.get(name, "") for name in (FOLDERS, "PYTHONPATH"))
    own = str(Path(evenkeel.__file__).parent.parent)
    folders = [*limits.path, *filter(None, inherited.split(os.pathsep)), own]
    return {
        **{name: os.environ[name] for name in _PASSED_ON if name in os.environ},
        "PYTHONPATH": os.pathsep.join(folders),
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


@contextlib.contextmanager
def _memory_file(name: str) -> Iterator[int]:
    descriptor = os.memfd_create(name)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _content(descriptor: int) -> bytes:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


def _ending(status: int) -> str:
    if status >= 0:
        return f"ended its process with code {status}"
    try:
        return f"ended by signal {signal.Signals(-status).name}"
    except ValueError:
        return f"ended by signal {-status}"


def _quoted(what: str, text: str) -> str:
    text = text.strip()
    return f"; {what}:\n{text}" if text else ""
