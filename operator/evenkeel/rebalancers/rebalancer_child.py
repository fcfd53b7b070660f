"""Main program of the child process: load one class, run one computation, write one reply, exit.

Run as `python -m evenkeel.rebalancers.rebalancer_child REQUEST_FD REPLY_FD` by `rebalancer_process.py`. The
user's code may print to the standard streams; the reply has its own file descriptor. The process ends with `_exit`,
so threads and exit handlers of the user's code cannot delay it. It also sets an alarm, so it ends even if the
operator that started it was killed.
"""

from __future__ import annotations

import importlib
import math
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from typing import TypeVar

import msgspec

from evenkeel.model.views import Assignment
from evenkeel.rebalancers.rebalancer_api import RebalanceContext, Rebalancer
from evenkeel.rebalancers.rebalancer_messages import Answer, Failure, Reply, Request, pack, unpack

__all__ = ["main"]

_GRACE_SECONDS = 2
_FRAMES = 8

T = TypeVar("T")


class _FailedError(Exception):
    """The user's class failed; carries the reply."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.what)
        self.failure = failure


def main(arguments: list[str]) -> None:
    """Read the request, run the class, write the reply."""
    request_fd, reply_fd = map(int, arguments)
    with open(request_fd, "rb") as stream:
        request = msgspec.msgpack.decode(stream.read(), type=Request)
    _limit(request)
    with open(reply_fd, "wb", closefd=False) as stream:
        stream.write(msgspec.msgpack.encode(_reply(request)))
    os._exit(0)


def _limit(request: Request) -> None:
    signal.alarm(math.ceil(request.seconds) + _GRACE_SECONDS)
    mapped = int(_read("/proc/self/statm").split()[0]) * resource.getpagesize()
    _set(resource.RLIMIT_AS, mapped + request.memory)
    _set(resource.RLIMIT_FSIZE, request.answer_bytes)
    _set(resource.RLIMIT_CORE, 0)


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


def _set(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def _reply(request: Request) -> Reply:
    try:
        return _answer(request)
    except _FailedError as error:
        return error.failure


def _answer(request: Request) -> Answer:
    context = RebalanceContext(request.table.config, request.context)
    rebalancer = _load(request.class_name)
    _attempt("raised in init", lambda: rebalancer.init(context))
    assignment = _attempt(
        "raised in compute",
        lambda: rebalancer.compute(request.table, unpack(request.previous), request.stores, request.current),
    )
    if not isinstance(assignment, Assignment):
        what = f"returned a {type(assignment).__name__}; compute must return an evenkeel.model.views.Assignment"
        raise _FailedError(Failure(what=what))
    packed = _attempt("returned an invalid Assignment", lambda: pack(assignment))
    return Answer(assignment=packed, context=context.saved)


def _load(class_name: str) -> Rebalancer:
    module_name, _, name = class_name.partition(":")
    module = _attempt(f"cannot be imported: module {module_name} raised", lambda: importlib.import_module(module_name))
    found = getattr(module, name, None)
    if not isinstance(found, type):
        problem = "has no such name" if found is None else f"has a {type(found).__name__} of that name, not a class"
        raise _FailedError(Failure(what=f"cannot be imported: module {module_name} {problem}"))
    for method in ("init", "compute"):
        if not callable(getattr(found, method, None)):
            raise _FailedError(Failure(what=f"is not a rebalancer: it has no method {method}"))
    rebalancer: Rebalancer = _attempt("raised when it was created without arguments", found)
    return rebalancer


def _attempt(what: str, action: Callable[[], T]) -> T:
    try:
        return action()
    except BaseException as error:
        message = f"{what}: {type(error).__name__}: {error}"
        trace = "".join(traceback.format_exception(error, limit=-_FRAMES))
        raise _FailedError(Failure(what=message[:2000], trace=trace[-8000:])) from None


if __name__ == "__main__":
    main(sys.argv[1:])
