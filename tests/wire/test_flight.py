"""The Flight messages: encoding, validation and errors."""

from __future__ import annotations

import pytest

from evenkeel import errors
from evenkeel.errors import NotLeaderError, RequestError, RetentionError, StoreError, TooLargeError
from evenkeel.wire.flight import (
    ErrorInfo,
    PutRequest,
    ReadRequest,
    decode,
    decode_error,
    encode,
    encode_error,
    pack,
    unpack,
)

KINDS = [
    kind for name in errors.__all__ if isinstance(kind := getattr(errors, name), type) and issubclass(kind, StoreError)
]


@pytest.mark.parametrize("kind", KINDS)
def test_errors_keep_their_type(kind: type[StoreError]) -> None:
    """Every error of the tree keeps its type and message."""
    arrived = decode_error(encode(encode_error(kind("what was wrong"))))
    assert (type(arrived), str(arrived)) == (kind, "what was wrong")


def test_errors_keep_their_attributes() -> None:
    """`NotLeaderError`, `TooLargeError` and `RetentionError` keep their attributes."""
    redirect = decode_error(encode_error(NotLeaderError("no", store="s", address="grpc://s:1")))
    assert isinstance(redirect, NotLeaderError)
    assert (redirect.store, redirect.address) == ("s", "grpc://s:1")
    large = decode_error(encode_error(TooLargeError("no", limit=7)))
    assert isinstance(large, TooLargeError)
    assert large.limit == 7
    old = decode_error(encode_error(RetentionError("no", first=9)))
    assert isinstance(old, RetentionError)
    assert old.first == 9


def test_errors_of_a_later_version() -> None:
    """An unknown kind is decoded as `StoreError`."""
    assert type(decode_error(ErrorInfo(kind="new", message="x"))) is StoreError


def test_requests_are_strict() -> None:
    """A request with an unknown field or an invalid value is rejected."""
    assert decode(ReadRequest, b'{"table":"t"}') == ReadRequest(table="t")
    for wrong in (b"{", b'{"table":"t","limt":1}', b'{"table":""}', b'{"table":"t","limit":-1}', b""):
        with pytest.raises(RequestError, match="not a ReadRequest"):
            decode(ReadRequest, wrong)
    with pytest.raises(RequestError, match="not a PutRequest"):
        decode(PutRequest, b'{"table":"t","op":"drop"}')


def test_pack() -> None:
    """`unpack` reverses `pack`, and rejects data that is too short."""
    request, rest = unpack(ReadRequest, pack(ReadRequest(table="t"), b"rest"))
    assert (request.table, bytes(rest)) == ("t", b"rest")
    for wrong in (b"", b"\xff\xff\xff\xff{}"):
        with pytest.raises(RequestError):
            unpack(ReadRequest, wrong)
