"""Users' classes run in a process of their own: nothing they do may cost the operator its loop, memory or Lease.

The request and the reply are anonymous files in memory rather than pipes: nobody has to read while the other
writes, so there is no way to block on a full pipe, and the limit on file size bounds both the reply and what the
class prints. The child leads a process group. The end of the child is noticed through a pidfd without reaping it,
so that its process id still belongs to it when the whole group is killed; only then is it reaped. That happens on
every way out: answer, failure, time limit, cancellation.
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
"""Names folders in which users\' classes are looked for, separated as in PYTHONPATH."""
_PASSED_ON = ("LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "TZ")


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a user's class may take, and where its modules are found."""

    seconds: float = 10.0
    """Wall clock for one computation, the start of the interpreter included."""
    memory: int = 1 << 30
    """Bytes of address space beyond the interpreter's own."""
    path: tuple[str, ...] = ()
    """Folders searched for modules before everything else: where ConfigMaps with users' classes are mounted."""


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
    """Run one computation of `package.module:Name`; the assignment, not yet validated, and the context to keep."""
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
        raise RebalancerError(f"class {class_name} answered a malformed assignment: {error}") from None


def _answer_bytes(table: TableView, stores: StoresView) -> int:
    matrix = 8 * table.partitions * (table.replicas + 1)
    return matrix + 512 * len(stores.stores) + 2 * MAX_CONTEXT + (1 << 20)


async def _exchange(request: Request, limits: Limits) -> Reply:
    name = request.class_name
    with _memory_file("request") as asked, _memory_file("reply") as replied, _memory_file("printed") as printed:
        os.pwrite(asked, msgspec.msgpack.encode(request), 0)
        status = await _run(asked, replied, printed, limits=limits)
        said = _quoted("it printed", _content(printed)[-_PRINTED:].decode(errors="replace"))
        if status is None:
            raise RebalancerError(f"class {name} gave no answer within {limits.seconds:g} s and was ended{said}")
        if status != 0:
            raise RebalancerError(f"class {name} {_ending(status)} without an answer{said}")
        try:
            return msgspec.msgpack.decode(_content(replied), type=Answer | Failure)
        except (ValueError, RecursionError):
            raise RebalancerError(f"class {name} ended without a readable answer{said}") from None


async def _run(asked: int, replied: int, printed: int, *, limits: Limits) -> int | None:
    """Exit status of the child, negative for a signal; None where the time limit ended it."""
    child = subprocess.Popen(  # noqa: ASYNC220 - only the exec is waited for, as asyncio's own subprocess does
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
    """Nothing of the operator's own environment, which may hold credentials, beyond locale and paths.

    A fixed hash seed lets two operators that run the same class on the same inputs come to the same plan.
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
