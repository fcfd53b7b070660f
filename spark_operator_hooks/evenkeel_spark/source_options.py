"""The options of the data source, parsed strictly, with errors that name the option.

The driver and every executor read files from their own disks. So a Secret that is mounted in all pods (`secret`) is all
that a job needs, and the plan contains no access token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from evenkeel.errors import InvalidInputError

__all__ = ["Connection", "SourceOptions", "read_options"]

T = TypeVar("T")
_LONGEST_PIN: Final = 86_400.0


class Connection(Struct, frozen=True):
    """How to connect to the stores; equal connections share a client."""

    endpoints: tuple[str, ...]
    token: str = ""
    ca: str = ""
    server_name: str = ""
    deadline: float = 60.0


class SourceOptions(Struct, frozen=True, kw_only=True):
    """All options as given."""

    table: str
    endpoints: tuple[str, ...] = ()
    token: str = ""
    token_file: str = ""
    ca: str = ""
    server_name: str = ""
    secret: str = ""
    deadline: float = 60.0
    columns: tuple[str, ...] | None = None
    filter: Any = None
    pin_seconds: float = 3600.0

    def connection(self) -> Connection:
        """Return how to connect to the stores, from the files of this machine."""
        endpoints, token, ca = self.endpoints, self.token, self.ca
        if self.token_file:
            token = _read_file("tokenFile", Path(self.token_file))
        if self.secret:
            directory = Path(self.secret)
            endpoints = endpoints or _addresses(_read_file("secret", directory / "endpoints"))
            token = token or _read_file("secret", directory / "token")
            ca = ca or (str(directory / "ca.crt") if (directory / "ca.crt").exists() else "")
        return Connection(endpoints, token, ca, self.server_name, self.deadline)


def read_options(given: Mapping[str, str]) -> SourceOptions:
    """Parse options; their names are case-insensitive, as usual in Spark."""
    fields: dict[str, Any] = {}
    for name, text in given.items():
        known = _KNOWN.get(name.lower())
        if known is None:
            names = ", ".join(option.name for option in _KNOWN.values() if option.name != "path")
            raise InvalidInputError(f"option {name}: unknown; allowed: {names}")
        value = known.read(text, known.name)
        if fields.setdefault(known.field, value) != value:
            raise InvalidInputError(f"option table: got {fields[known.field]}, and {value} as path; give only one")
    if "table" not in fields:
        raise InvalidInputError('option table: missing; use .option("table", "orders") or .load("orders")')
    if "endpoints" not in fields and "secret" not in fields:
        raise InvalidInputError(
            'option endpoints: missing; give at least one store, like "grpc://127.0.0.1:7500", or set the option '
            "secret to the directory of a StoreCluster's Secret"
        )
    return SourceOptions(**fields)


class _Option(Struct, frozen=True):
    name: str
    field: str
    read: Callable[[str, str], Any]


def _text(text: str, option: str) -> str:
    if not text.strip():
        raise InvalidInputError(f"option {option}: is empty")
    return text.strip()


def _list(text: str, option: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in _text(text, option).split(",") if part.strip())


def _endpoints(text: str, option: str) -> tuple[str, ...]:
    found = _list(text, option)
    for endpoint in found:
        if not endpoint.startswith(("grpc://", "grpc+tcp://", "grpc+tls://")):
            raise InvalidInputError(
                f"option {option}: got {endpoint!r}; allowed: grpc://HOST:PORT or grpc+tls://HOST:PORT, separated by "
                "commas"
            )
    return found


def _addresses(text: str) -> tuple[str, ...]:
    return _endpoints(text, "secret (its file endpoints)")


def _seconds(text: str, option: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _LONGEST_PIN:
        raise InvalidInputError(f"option {option}: got {text!r}; allowed: seconds, more than 0, at most 86400")
    return seconds


def _filter(text: str, option: str) -> Any:
    try:
        return msgspec.json.decode(text, type=list[Any])
    except msgspec.DecodeError as error:
        raise InvalidInputError(
            f'option {option}: {error}; allowed: JSON like ["=", "customer", "anna"], which '
            '`(evenkeel.client.col("customer") == "anna").json()` makes'
        ) from None


_KNOWN: Final = {
    option.name.lower(): option
    for option in (
        _Option("table", "table", _text),
        _Option("path", "table", _text),
        _Option("endpoints", "endpoints", _endpoints),
        _Option("token", "token", _text),
        _Option("tokenFile", "token_file", _text),
        _Option("ca", "ca", _text),
        _Option("serverName", "server_name", _text),
        _Option("secret", "secret", _text),
        _Option("deadline", "deadline", _seconds),
        _Option("columns", "columns", _list),
        _Option("filter", "filter", _filter),
        _Option("pinSeconds", "pin_seconds", _seconds),
    )
}


def _read_file(option: str, path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:
        raise InvalidInputError(f"option {option}: {path}: {error.strerror}") from None
