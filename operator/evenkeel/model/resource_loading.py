"""Reads and validates resources from YAML or data; reports every problem of every document with its line.

`load_yaml` reads what users write; `parse` reads data from the API server or the metastore. Both apply the same rules.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from evenkeel.errors import InputProblem, InvalidInputError
from evenkeel.model.json_schema import Node, allowed, at, free_form, schema_of
from evenkeel.model.partitionassignment import PartitionAssignment
from evenkeel.model.rebalanceplan import RebalancePlan
from evenkeel.model.resource_base import API_VERSION, UNOBSERVED, Path
from evenkeel.model.storecluster import StoreCluster
from evenkeel.model.table import Table
from evenkeel.model.validation_errors import explain, show, spell, suggestion
from evenkeel.model.yamltree import Document, documents

__all__ = ["KINDS", "Loaded", "Resource", "load_yaml", "parse", "read_yaml"]

Resource = StoreCluster | Table | PartitionAssignment | RebalancePlan

KINDS: dict[str, type[Resource]] = {
    "StoreCluster": StoreCluster,
    "Table": Table,
    "PartitionAssignment": PartitionAssignment,
    "RebalancePlan": RebalancePlan,
}


class Loaded(NamedTuple):
    """The valid resources of a file with their lines, and the problems of the others."""

    resources: list[tuple[int, Resource]]
    problems: list[InputProblem]


def load_yaml(text: str, source: str = "input") -> list[Resource]:
    """Return all resources of a YAML text; raise InvalidInputError with every problem as `source:line: field: ...`."""
    loaded = read_yaml(text, source)
    if loaded.problems:
        raise InvalidInputError(problems=loaded.problems)
    return [resource for _, resource in loaded.resources]


def read_yaml(text: str, source: str = "input") -> Loaded:
    """Return both the valid resources and the problems of a YAML text."""
    loaded = Loaded([], [])
    try:
        found = documents(text, source=source)
    except InvalidInputError as error:
        return Loaded([], list(error.problems))
    first: dict[tuple[str, str], int] = {}
    for document in found:
        try:
            resource = _resource(document, source)
            _refuse_repetition(resource, document, first, source)
            loaded.resources.append((document.line, resource))
        except InvalidInputError as error:
            loaded.problems.extend(error.problems)
    return loaded


def parse(data: Mapping[str, Any], source: str = "object") -> Resource:
    """Return the resource of plain data; the default status of a new object counts as no status."""
    written = {name: value for name, value in data.items() if name != "status" or value != UNOBSERVED}
    return _resource(Document(0, written, {}), source)


def _refuse_repetition(resource: Resource, document: Document, first: dict[tuple[str, str], int], source: str) -> None:
    identity = (resource.kind, resource.key)
    if identity in first:
        text = f"{resource.kind} {resource.key} is already defined in line {first[identity]}"
        raise InvalidInputError(
            problems=[InputProblem(source, document.line_of(("metadata", "name")), "metadata.name", text)]
        )
    first[identity] = document.line


def _resource(document: Document, source: str) -> Resource:
    model = _model(document, source)
    assert isinstance(document.data, dict)
    schema = schema_of(model)
    data, nulls = _without_nulls(document, schema, source)
    try:
        resource = model.model_validate_json(json.dumps(data), by_alias=True, by_name=False)
    except ValidationError as error:
        missing = {problem.path for problem in nulls}
        found = [
            problem
            for details in _own_errors(error)
            for problem in explain(details, schema=schema, document=document, source=source)
            if problem.path not in missing
        ]
        raise InvalidInputError(problems=sorted([*nulls, *found], key=lambda p: p.line)) from None
    if nulls:
        raise InvalidInputError(problems=nulls)
    return resource


def _own_errors(error: ValidationError) -> list[ErrorDetails]:
    """Return the errors without those of lists that are too short only because pydantic skips their invalid items."""
    errors = error.errors(include_url=False)
    places = {details["loc"][:i] for details in errors for i in range(len(details["loc"]))}
    return [details for details in errors if details["type"] != "too_short" or details["loc"] not in places]


def _model(document: Document, source: str) -> type[Resource]:
    data = document.data
    if not isinstance(data, dict):
        text = f"got {show(data)}; allowed: a mapping with apiVersion, kind, metadata and spec"
        raise InvalidInputError(problems=[InputProblem(source, document.line, "", text)])
    problems = sorted(_unknown(data, document, source), key=lambda problem: problem.line)
    if problems:
        raise InvalidInputError(problems=problems)
    return KINDS[str(data["kind"])]


def _unknown(data: dict[str, Any], document: Document, source: str) -> Iterator[InputProblem]:
    for field, known in (("apiVersion", [API_VERSION]), ("kind", list(KINDS))):
        value = data.get(field)
        if not isinstance(value, str) or value not in known:
            got = f"got {show(value)}; " if field in data else "missing; "
            words = suggestion(str(value), known)
            text = words if words.startswith("allowed") else f"{words} allowed: {', '.join(known)}"
            yield InputProblem(source, document.line_of((field,)), field, got + text)


def _without_nulls(document: Document, schema: Node, source: str) -> tuple[Any, list[InputProblem]]:
    """Return the data without nulls, and a problem for each null in the spec.

    Tools of Kubernetes write nulls into metadata and status, where they mean "missing".
    """
    problems: list[InputProblem] = []

    def cleaned(value: Any, path: Path, part: Node) -> Any:
        if free_form(part):
            return value
        if isinstance(value, list):
            return [cleaned(item, (*path, i), at(part, (i,))) for i, item in enumerate(value)]
        if not isinstance(value, dict):
            return value
        for key in (
            key for key, item in value.items() if item is None and path[:1] not in (("metadata",), ("status",))
        ):
            words = f"got null; remove the line, or write {allowed(at(part, (key,)))}"
            problems.append(InputProblem(source, document.line_of((*path, key)), spell((*path, key)), words))
        return {key: cleaned(item, (*path, key), at(part, (key,))) for key, item in value.items() if item is not None}

    return cleaned(document.data, (), schema), problems
