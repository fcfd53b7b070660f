"""What every resource shares: the API's name, strictness, metadata, and rules that span several fields.

Resources are validated as the JSON that the API server would store: strict types (a quoted "8" is no number),
camelCase names only, and unknown fields refused, because a misspelt field that is silently dropped is found in
production. A status is the exception: there unknown fields are ignored, so that during an upgrade an older operator can
read what a newer one wrote.

A rule that one field alone cannot express yields `Violation`s with the path of the field to change. `enforce` carries
them through pydantic, so that a resource built in Python obeys the same rules as one read from YAML.
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
    "UNSEEN",
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
    "struck_off",
]

GROUP = "evenkeel.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

ALLOWED = "x-evenkeel-allowed"
VALUES = "x-evenkeel-values"
"""Schema key with the words an error message uses for what a field may hold; never part of a CRD."""

DNS_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"

Path = tuple[str | int, ...]


class Missing:
    """The type of `MISSING`: there is no value to show."""


MISSING = Missing()


class Violation(NamedTuple):
    """One broken rule: the field to change, what it holds, and what it may hold."""

    path: Path
    got: object
    allowed: str


def enforce(violations: Iterable[Violation]) -> None:
    """Raise, inside a pydantic validator, all violations as one error."""
    found = list(violations)
    if found:
        summary = "; ".join(f"{'.'.join(map(str, v.path))}: allowed: {v.allowed}" for v in found)
        raise PydanticCustomError("rules", "{summary}", {"summary": summary, "violations": found})


def cel(rule: str, message: str, *, field: str | None = None) -> JsonDict:
    """One entry of `x-kubernetes-validations`."""
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
    """Part of what a user writes: unknown fields are errors."""

    model_config = ConfigDict(**_COMMON, extra="forbid")


def known_values(*values: str) -> Any:
    """Of a text in a status: what this release writes there.

    It is no enum, neither in the CRD nor for whoever reads it: a newer operator may write others.
    """
    return Field(max_length=64, json_schema_extra={VALUES: list(values)})


class StatusModel(BaseModel):
    """Part of what the operator writes: unknown fields come from a newer operator and are ignored."""

    model_config = ConfigDict(**_COMMON, extra="ignore")

    def lean(self) -> Self:
        """The same in less memory, for what there are thousands of.

        Which fields were set is of no interest in a status, and the set that tells takes more room than the fields.
        """
        object.__setattr__(self, "__pydantic_fields_set__", _fields(type(self)))
        return self


@cache
def _fields(model: type[BaseModel]) -> set[str]:
    return set(model.model_fields)


def _name_allowed(length: int) -> str:
    return f"a DNS name: at most {length} lower-case letters, digits and dashes, as in `orders`"


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


UNSEEN: Final = {"observedGeneration": 0}
"""The status of an object that no operator has seen: no generation is 0."""


class ObjectMeta(Model):
    """Kubernetes' own metadata; complete, so that what `kubectl get -o yaml` prints can be read back."""

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
    """One object of the API; each kind adds `kind`, `spec` and `status`."""

    NAME_LENGTH: ClassVar[int] = 63
    """Longest name of this kind: what is derived from it (pods, labels, slices) must still be a legal name."""

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
        """`namespace/name`, which identifies the object among those of its kind."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    def document(self) -> dict[str, Any]:
        """The object as plain data, holding what was written and no defaults."""
        written = self.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_unset=True)
        return {"apiVersion": self.api_version, "kind": self.kind, **written}


def struck_off(listed: str, entry: str) -> str:
    """A list separated by commas, without one of its entries."""
    return ",".join(name for name in (one.strip() for one in listed.split(",")) if name and name != entry)
