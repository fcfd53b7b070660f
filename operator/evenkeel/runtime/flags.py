"""Flags and environment: every flag `--a-b` may be given as `EVENKEEL_A_B`; the flag wins."""

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
    """One flag."""

    name: str
    help: str
    default: str | None = ""
    """None: it has to be given."""
    choices: tuple[str, ...] = ()

    @property
    def variable(self) -> str:
        """What it is called in the environment."""
        return "EVENKEEL_" + self.name.upper().replace("-", "_")


LOG_FLAGS: Final = (
    Flag("log-level", "what to log", "info", ("debug", "info", "warning", "error")),
    Flag("log-format", "json for machines, console for people", "json", ("json", "console")),
)


class Flags:
    """What was given, as texts to be turned into values; InvalidInputError names the flag."""

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
            raise InvalidInputError(f"--{flag.name} is missing: {flag.help}; give it, or set {flag.variable}")
        if flag.choices and value not in flag.choices:
            raise InvalidInputError(f"--{flag.name} {value!r}: allowed are {', '.join(flag.choices)}")

    def text(self, flag: str) -> str:
        """As it was given."""
        return str(self._given[flag])

    def name(self, flag: str) -> str:
        """A name that can be part of a key."""
        text = self.text(flag)
        if not text or "/" in text or text != text.strip():
            raise InvalidInputError(f"--{flag} {text!r}: allowed is a name without '/' or spaces around it")
        return text

    def path(self, flag: str) -> Path | None:
        """A path; None where it was left out."""
        return Path(self.text(flag)) if self.text(flag) else None

    def secret(self, flag: str) -> str:
        """What a file holds; empty where none was named."""
        file = self.path(flag)
        try:
            return file.read_text().strip() if file else ""
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "it does not hold text"
            raise InvalidInputError(f"--{flag} {file}: {why}") from error

    def endpoint(self, flag: str) -> Endpoint:
        """A host and a port."""
        text = self.text(flag)
        host, colon, port = text.rpartition(":")
        if not colon or not host or not port.isdecimal() or int(port) > 65535:
            raise InvalidInputError(f"--{flag} {text!r}: write it as HOST:PORT, for instance 127.0.0.1:7400")
        return Endpoint(host.removeprefix("[").removesuffix("]"), int(port))

    def number(self, flag: str, kind: Callable[[str], Any], *, least: float) -> Any:
        """A number, not too small."""
        text = self.text(flag)
        try:
            number = kind(text)
        except ValueError:
            number = None
        if number is None or not least <= number < math.inf:
            what = "a whole number" if kind is int else "a number"
            raise InvalidInputError(f"--{flag} {text!r}: allowed is {what} of at least {least:g}")
        return number


def _parser(flags: Sequence[Flag], environment: Mapping[str, str], program: str, about: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program,
        description=about,
        epilog="Every flag --a-b may be given in the environment as EVENKEEL_A_B.",
        allow_abbrev=False,
    )
    for flag in flags:
        default = environment.get(flag.variable, flag.default)
        shown = f" (default {flag.default})" if flag.default else " (required)" if flag.default is None else ""
        shown_help = (flag.help + shown).replace("%", "%%")
        parser.add_argument(f"--{flag.name}", default=default, metavar="VALUE", help=shown_help)
    return parser
