"""Sizes, rates and durations, validated and kept as the user wrote them.

They are strings with a numeric value: `10Gi` stays `10Gi` when it is printed or stored. Sizes and rates use the
notation of Kubernetes' quantities; durations use Go's notation plus days, always with a unit.
"""

from __future__ import annotations

import re
from decimal import Decimal
from math import ceil
from typing import Any, ClassVar, Self

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from evenkeel.model.resource_base import ALLOWED, cel

__all__ = ["Duration", "Quantity"]

_MULTIPLES = {
    "": Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    **{unit: Decimal(1000) ** power for power, unit in enumerate("kMGTPE", start=1)},
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", start=1)},
}
_SECONDS = {"ms": Decimal("1e-3"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600), "d": Decimal(86400)}
_LONGEST = 32
_MOST = 10**18 - 1
"""The largest integer that the patterns allow."""


class _Measure(str):
    """A string with a pattern; `str(x)` is what the user wrote."""

    PATTERN: ClassVar[str]
    ALLOWED: ClassVar[str]
    NUMBERS: ClassVar[bool]
    """Whether an integer is accepted besides text."""
    LEAST: ClassVar[int] = 0
    """The smallest accepted integer."""

    def __new__(cls, text: str) -> Self:
        """Check the pattern; raise ValueError if it does not match."""
        if len(text) > _LONGEST or re.fullmatch(cls.PATTERN, text) is None:
            raise ValueError(f"{text!r} is not {cls.ALLOWED}")
        return super().__new__(cls, text)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls._validate, serialization=core_schema.to_string_ser_schema()
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        shape: JsonSchemaValue = {"type": "string"}
        if cls.NUMBERS:
            # A pattern applies to text only.
            limits = cel(
                f"type(self) == string || (self >= {cls.LEAST} && self <= {_MOST})",
                f"a number must be from {cls.LEAST} to {_MOST}",
            )
            shape = {
                "anyOf": [{"type": "integer"}, {"type": "string"}],
                "x-kubernetes-int-or-string": True,
                "x-kubernetes-validations": [limits],
            }
        return {**shape, "pattern": cls.PATTERN, "maxLength": _LONGEST, ALLOWED: cls.ALLOWED}

    @classmethod
    def _validate(cls, raw: object) -> Self:
        number = cls.NUMBERS and isinstance(raw, int) and not isinstance(raw, bool)
        try:
            if isinstance(raw, str) or number:
                return cls(str(raw))
        except ValueError:
            pass
        raise PydanticCustomError("measure", "{allowed}", {"allowed": cls.ALLOWED})


class Quantity(_Measure):
    """A Kubernetes quantity such as `10Gi`, `500m` or `2`; never negative."""

    PATTERN = r"^([0-9]{1,18}(\.[0-9]{1,9})?)([KMGTPE]i|[numkMGTPE]|[eE][0-9]{1,2})?$"
    ALLOWED = "a quantity such as 10Gi, 500m or 2"
    NUMBERS = True

    @property
    def value(self) -> Decimal:
        """The exact value."""
        number, suffix = re.fullmatch(self.PATTERN, self).group(1, 3)  # type: ignore[union-attr]
        return Decimal(number) * (_MULTIPLES.get(suffix or "") or Decimal(f"1{suffix}"))

    @property
    def units(self) -> int:
        """The value in whole units (bytes, for a size), rounded up like in Kubernetes."""
        return ceil(self.value)


class Rate(Quantity):
    """A quantity per second, above zero."""

    PATTERN = (
        r"^((?:[0-9]{0,17}[1-9][0-9]{0,17}(?:\.[0-9]{1,9})?|0(\.[0-9]{0,8}[1-9][0-9]{0,8})))"
        r"([KMGTPE]i|[numkMGTPE]|[eE][0-9]{1,2})?$"
    )
    ALLOWED = "a quantity above zero, such as 20Mi or 500k"
    LEAST = 1


class Duration(_Measure):
    """A length of time such as `30s`, `10m` or `1h30m`."""

    PATTERN = r"^([0-9]{1,9}(\.[0-9]{1,9})?(ms|s|m|h|d))+$"
    ALLOWED = "a duration with its unit (ms, s, m, h, d), such as 30s, 10m or 1h30m"
    NUMBERS = False

    @property
    def seconds(self) -> float:
        """The duration in seconds."""
        parts = re.findall(r"([0-9.]+)(ms|s|m|h|d)", self)
        return float(sum(Decimal(number) * _SECONDS[unit] for number, unit in parts))
