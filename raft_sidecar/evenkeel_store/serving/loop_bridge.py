"""From the Flight server's threads to the event loop and back, and errors on their way out.

A `StoreError` travels as a Flight error whose `extra_info` says exactly what it was (`evenkeel.wire.flight`). Any other
exception is a fault of ours: it is logged here, and the client learns that there was one.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import duckdb
import pyarrow as pa
from pyarrow import flight

from evenkeel.errors import (
    AccessError,
    BusyError,
    DiskFullError,
    NotLeaderError,
    OutcomeUnknownError,
    RequestError,
    StoreError,
    UnavailableError,
)
from evenkeel.wire.flight import encode, encode_error

__all__ = ["LoopBridge", "flight_error", "translated"]

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_UNAVAILABLE: Final = (BusyError, DiskFullError, NotLeaderError, OutcomeUnknownError, UnavailableError)


class LoopBridge:
    """Lets threads wait for what the event loop does."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def begin(self, work: Coroutine[Any, Any, _T]) -> concurrent.futures.Future[_T]:
        """Have something done on the loop."""
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise UnavailableError("the store is stopping: ask another one") from None

    def call(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Have something done on the loop, and wait for it."""
        try:
            return self.begin(work).result()
        except (asyncio.CancelledError, concurrent.futures.CancelledError):
            raise UnavailableError("the store is stopping: ask another one") from None


def flight_error(error: StoreError) -> flight.FlightError:
    """Return the error that a client gets."""
    info = encode(encode_error(error))
    if isinstance(error, AccessError):
        return flight.FlightUnauthenticatedError(str(error), info)
    if isinstance(error, _UNAVAILABLE):
        return flight.FlightUnavailableError(str(error), info)
    return flight.FlightServerError(str(error), info)


@contextmanager
def translated(calls: Counter[tuple[str, str]], method: str) -> Iterator[None]:
    """Let errors out in the form that clients understand, and count how a call ends."""
    try:
        with _counted(calls, method):
            yield
    except StoreError as error:
        raise flight_error(error) from None
    except duckdb.Error as error:
        log.error("a read failed: %s", error)
        raise flight_error(UnavailableError(f"the rows cannot be read here: {error}")) from None
    except pa.ArrowException as error:
        raise flight_error(RequestError(f"not valid Arrow data: {error}")) from None
    except flight.FlightError:
        raise
    except Exception:
        log.exception("a request failed")
        raise flight_error(StoreError("the store failed at this request; its log says why")) from None


@contextmanager
def _counted(calls: Counter[tuple[str, str]], method: str) -> Iterator[None]:
    outcome = "fault"
    try:
        yield
        outcome = "ok"
    except StoreError as error:
        outcome = encode_error(error).kind
        raise
    finally:
        calls[method, outcome] += 1
