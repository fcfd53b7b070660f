"""Messages between the operator and the child process that runs a user's class: msgpack, never pickled code.

An assignment is sent as the bytes of its matrix, so a million partitions take milliseconds.
"""

from __future__ import annotations

import msgspec
import numpy as np

from evenkeel.model.views import Assignment, CurrentState, StoresView, TableView

__all__ = ["Answer", "Failure", "PackedAssignment", "Reply", "Request", "pack", "unpack"]


class PackedAssignment(msgspec.Struct, frozen=True):
    """An `Assignment` as plain data."""

    stores: tuple[str, ...]
    rows: bytes
    """int32, little-endian, row by row."""
    partitions: int
    width: int
    voters: int


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs and limits of one computation."""

    class_name: str
    table: TableView
    previous: PackedAssignment
    stores: StoresView
    current: CurrentState
    context: bytes | None
    memory: int
    answer_bytes: int
    seconds: float


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag="answer"):
    """The result of the class."""

    assignment: PackedAssignment
    context: bytes | None


class Failure(msgspec.Struct, frozen=True, kw_only=True, tag="failure"):
    """The class failed; `what` continues the message "class X ..."."""

    what: str
    trace: str = ""


Reply = Answer | Failure


def pack(assignment: Assignment) -> PackedAssignment:
    """Convert an assignment to plain data."""
    rows = assignment.rows
    return PackedAssignment(
        assignment.stores, rows.astype("<i4").tobytes(), rows.shape[0], rows.shape[1], assignment.voters
    )


def unpack(packed: PackedAssignment) -> Assignment:
    """Convert plain data to an assignment; raise ValueError if its shape does not match its bytes."""
    rows = np.frombuffer(packed.rows, dtype="<i4").reshape(packed.partitions, packed.width)
    return Assignment(packed.stores, rows.astype(np.int32), voters=packed.voters)
