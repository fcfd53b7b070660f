"""Command-line flags; every flag `--a-b` can also be set as `EVENKEEL_A_B`, and the flag takes precedence."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from evenkeel.errors import InvalidInputError

__all__ = ["LOG_FLAGS", "Endpoint", "Flag", "Flags"]


class Endpoint(NamedTuple):
    """A host and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Flag(NamedTuple):
    """A command-line flag."""

    name: str
    help: str
    default: str | None = ""
    """None if the flag is required."""
    choices: tuple[str, ...] = ()

    @property
    def variable(self) -> str:
        """The environment variable of the flag."""
        return "EVENKEEL_" + self.name.upper().replace("-", "_")


LOG_FLAGS: Final = (
    Flag("log-level", "lowest level to log", "info", ("debug", "info", "warning", "error")),
    Flag("log-format", "format of log lines", "json", ("json", "console")),
)


class Flags:
    """Parsed flags, read as values by type; an InvalidInputError names the flag."""

    def __init__(
        self,
        flags: Sequence[Flag],
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        program: str,
        about: str,
    ) -> None:
        given = vars(_parser(flags, environment, program, about).parse_args(arguments))
        self._given: dict[str, Any] = {name.replace("_", "-"): value for name, value in given.items()}
        for flag in flags:
            self._check(flag)

    def _check(self, flag: Flag) -> None:
        value = self._given[flag.name]
        if value is None:
            raise InvalidInputError(f"--{flag.name} is missing: {flag.help}; set it, or set {flag.variable}")
        if flag.choices and value not in flag.choices:
            raise InvalidInputError(f"--{flag.name} {value!r}: allowed: {', '.join(flag.choices)}")

    def text(self, flag: str) -> str:
        """Return the value as text."""
        return str(self._given[flag])

    def name(self, flag: str) -> str:
        """Return a name that can be part of a metastore key."""
        text = self.text(flag)
        if not text or "/" in text or text != text.strip():
            raise InvalidInputError(f"--{flag} {text!r}: allowed: a name without '/' or surrounding spaces")
        return text

    def path(self, flag: str) -> Path | None:
        """Return a path, or None if the flag is empty."""
        return Path(self.text(flag)) if self.text(flag) else None

    def secret(self, flag: str) -> str:
        """Return the content of the file that the flag names, or an empty text if the flag is empty."""
        file = self.path(flag)
        try:
            return file.read_text().strip() if file else ""
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not a text file"
            raise InvalidInputError(f"--{flag} {file}: {why}") from error

    def endpoint(self, flag: str) -> Endpoint:
        """Return a host and a port."""
        text = self.text(flag)
        host, colon, port = text.rpartition(":")
        if not colon or not host or not port.isdecimal() or int(port) > 65535:
            raise InvalidInputError(f"--{flag} {text!r}: allowed: HOST:PORT, such as 127.0.0.1:7400")
        return Endpoint(host.removeprefix("[").removesuffix("]"), int(port))

    def number(self, flag: str, kind: Callable[[str], Any], *, least: float) -> Any:
        """Return a number of at least `least`."""
        text = self.text(flag)
        try:
            number = kind(text)
        except ValueError:
            number = None
        if number is None or not least <= number < math.inf:
            what = "a whole number" if kind is int else "a number"
            raise InvalidInputError(f"--{flag} {text!r}: allowed: {what} of at least {least:g}")
        return number


def _parser(flags: Sequence[Flag], environment: Mapping[str, str], program: str, about: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program,
        description=about,
        epilog="Every flag --a-b can also be set by the environment variable EVENKEEL_A_B.",
        allow_abbrev=False,
    )
    for flag in flags:
        default = environment.get(flag.variable, flag.default)
        shown = f" (default {flag.default})" if flag.default else " (required)" if flag.default is None else ""
        shown_help = (flag.help + shown).replace("%", "%%")
        parser.add_argument(f"--{flag.name}", default=default, metavar="VALUE", help=shown_help)
    return parser
