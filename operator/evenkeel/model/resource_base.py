"""What every resource shares: the API version, strictness, metadata, and rules over several fields.

Resources are validated as the JSON that the API server would store: strict types (a quoted "8" is not a number),
camelCase names only, and no unknown fields, because a misspelt field must not be dropped silently. Statuses ignore
unknown fields, so that during an upgrade an older operator can read what a newer one wrote.

A rule over several fields yields `Violation`s with the path of the field to change. `enforce` passes them through
pydantic, so that a resource built in Python obeys the same rules as one read from YAML.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError

__all__ = [
    "API_VERSION",
    "GROUP",
    "MISSING",
    "UNOBSERVED",
    "VERSION",
    "Count",
    "DnsName",
    "Labels",
    "Model",
    "ObjectMeta",
    "Path",
    "ResourceBase",
    "StatusModel",
    "Text",
    "Violation",
    "cel",
    "enforce",
    "without_entry",
]

GROUP = "evenkeel.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

ALLOWED = "x-evenkeel-allowed"
"""Schema key with the description of the allowed values in error messages; never part of a CRD."""
VALUES = "x-evenkeel-values"
"""Schema key with the values that this release writes into a status field; never part of a CRD."""

DNS_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"

Path = tuple[str | int, ...]


class Missing:
    """The type of `MISSING`, which stands for a value that is not given."""


MISSING = Missing()


class Violation(NamedTuple):
    """One violated rule: the field to change, its value and the allowed values."""

    path: Path
    got: object
    allowed: str


def enforce(violations: Iterable[Violation]) -> None:
    """Raise all violations as one error of a pydantic validator."""
    found = list(violations)
    if found:
        summary = "; ".join(f"{'.'.join(map(str, v.path))}: allowed: {v.allowed}" for v in found)
        raise PydanticCustomError("rules", "{summary}", {"summary": summary, "violations": found})


def cel(rule: str, message: str, *, field: str | None = None) -> JsonDict:
    """Return an entry of `x-kubernetes-validations`."""
    entry: JsonDict = {"rule": rule, "message": message}
    return entry if field is None else {**entry, "fieldPath": field}


_COMMON = ConfigDict(
    strict=True,
    frozen=True,
    alias_generator=to_camel,
    validate_by_name=True,
    validate_by_alias=True,
    use_attribute_docstrings=True,
)


class Model(BaseModel):
    """Part of a spec, which a user writes: unknown fields are errors."""

    model_config = ConfigDict(**_COMMON, extra="forbid")


def known_values(*values: str) -> Any:
    """Declare the values that this release writes into a status field.

    The field is not an enum, neither in the CRD nor in the model, because a newer operator may write other values.
    """
    return Field(max_length=64, json_schema_extra={VALUES: list(values)})


class StatusModel(BaseModel):
    """Part of a status, which the operator writes: unknown fields come from a newer operator and are ignored."""

    model_config = ConfigDict(**_COMMON, extra="ignore")

    def lean(self) -> Self:
        """Return self with less memory, for models that exist in thousands.

        Statuses do not need pydantic's set of explicitly set fields, which is larger than the fields.
        """
        object.__setattr__(self, "__pydantic_fields_set__", _fields(type(self)))
        return self


@cache
def _fields(model: type[BaseModel]) -> set[str]:
    return set(model.model_fields)


def _name_allowed(length: int) -> str:
    return f"a DNS name: at most {length} lower-case letters, digits and dashes, such as `orders`"


DnsName = Annotated[
    str,
    Field(
        pattern=DNS_LABEL,
        min_length=1,
        max_length=63,
        json_schema_extra={ALLOWED: _name_allowed(63)},
    ),
]
Text = Annotated[str, Field(max_length=1024)]
Count = Annotated[int, Field(ge=0, le=2**53)]
LabelValue = Annotated[str, Field(max_length=253)]
Labels = Annotated[dict[str, LabelValue], Field(max_length=64)]


UNOBSERVED: Final = {"observedGeneration": 0}
"""The default status of an object, before an operator has observed it; generations start at 1."""


class ObjectMeta(Model):
    """The metadata of Kubernetes; complete, so that the output of `kubectl get -o yaml` can be read back."""

    name: Annotated[str, Field(pattern=DNS_LABEL, max_length=253, json_schema_extra={ALLOWED: _name_allowed(63)})]
    namespace: DnsName = "default"
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    uid: str = ""
    resource_version: str = ""
    generation: Count = 0
    generate_name: str = ""
    creation_timestamp: str = ""
    deletion_timestamp: str = ""
    deletion_grace_period_seconds: Count = 0
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[Mapping[str, Any], ...] = ()
    managed_fields: tuple[Mapping[str, Any], ...] = ()
    self_link: str = ""


class ResourceBase(Model):
    """The base of all kinds; each kind adds `kind`, `spec` and `status`."""

    NAME_LENGTH: ClassVar[int] = 63
    """Maximum length of a name; names derived from it (pods, labels, slices) must still be valid."""

    api_version: Literal["evenkeel.dev/v1alpha1"] = "evenkeel.dev/v1alpha1"
    kind: str
    metadata: ObjectMeta

    @model_validator(mode="after")
    def _name_fits(self) -> Self:
        if len(self.metadata.name) > self.NAME_LENGTH:
            enforce([Violation(("metadata", "name"), self.metadata.name, _name_allowed(self.NAME_LENGTH))])
        return self

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    def document(self) -> dict[str, Any]:
        """Return the object as plain data, without defaults."""
        written = self.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_unset=True)
        return {"apiVersion": self.api_version, "kind": self.kind, **written}


def without_entry(listed: str, entry: str) -> str:
    """Return a comma-separated list without one of its entries."""
    return ",".join(name for name in (one.strip() for one in listed.split(",")) if name and name != entry)
