"""Calls from Flight threads to the event loop, and the translation of errors for clients.

A `StoreError` travels as a Flight error with its details in `extra_info` (`evenkeel.wire.flight`). Any other exception
is a bug in the store: it is logged here, and the client gets a generic error.
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

__all__ = ["LoopBridge", "flight_error", "translate_errors"]

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_UNAVAILABLE: Final = (BusyError, DiskFullError, NotLeaderError, OutcomeUnknownError, UnavailableError)


class LoopBridge:
    """Runs coroutines on the event loop for other threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def begin(self, work: Coroutine[Any, Any, _T]) -> concurrent.futures.Future[_T]:
        """Start a coroutine on the loop."""
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise UnavailableError("the store is stopping; retry on another store") from None

    def call(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine on the loop and wait for its result."""
        try:
            return self.begin(work).result()
        except (asyncio.CancelledError, concurrent.futures.CancelledError):
            raise UnavailableError("the store is stopping; retry on another store") from None


def flight_error(error: StoreError) -> flight.FlightError:
    """Return the Flight error that a client gets."""
    info = encode(encode_error(error))
    if isinstance(error, AccessError):
        return flight.FlightUnauthenticatedError(str(error), info)
    if isinstance(error, _UNAVAILABLE):
        return flight.FlightUnavailableError(str(error), info)
    return flight.FlightServerError(str(error), info)


@contextmanager
def translate_errors(calls: Counter[tuple[str, str]], method: str) -> Iterator[None]:
    """Raise errors in the form that clients understand, and count calls by outcome."""
    try:
        with _counted(calls, method):
            yield
    except StoreError as error:
        raise flight_error(error) from None
    except duckdb.Error as error:
        log.error("read failed: %s", error)
        raise flight_error(UnavailableError(f"the rows cannot be read on this store: {error}")) from None
    except pa.ArrowException as error:
        raise flight_error(RequestError(f"not valid Arrow data: {error}")) from None
    except flight.FlightError:
        raise
    except Exception:
        log.exception("request failed")
        raise flight_error(StoreError("internal error in the store; see its log")) from None


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
