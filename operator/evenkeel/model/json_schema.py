"""The models' JSON schema with references resolved: the source of CRDs, error messages and reference pages.

Pydantic describes an optional field as "this or null". The API server does not accept null for a missing field, so the
null is removed here, and `resource_loading` refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel

from evenkeel.model.resource_base import ALLOWED, VALUES, Path

__all__ = ["Node", "allowed", "at", "free_form", "schema_of"]

Node = Mapping[str, Any]


@cache
def schema_of(model: type[BaseModel]) -> Node:
    """Return the schema of a model without `$ref`, `$defs`, titles and nulls."""
    raw = model.model_json_schema(by_alias=True)
    resolved = _resolve(raw, raw.get("$defs", {}))
    assert isinstance(resolved, dict)
    return resolved


def _resolve(node: Any, definitions: Node) -> Any:
    if isinstance(node, list):
        return [_resolve(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        target = definitions[node["$ref"].rsplit("/", 1)[1]]
        node = {**target, **{key: value for key, value in node.items() if key != "$ref"}}
    if "properties" in node:
        properties = {name: _resolve(child, definitions) for name, child in node["properties"].items()}
        node = {**node, "properties": properties}
    kept = {key: value for key, value in node.items() if key not in ("title", "$defs", "properties")}
    out = {key: _resolve(value, definitions) for key, value in kept.items()}
    if "properties" in node:
        out["properties"] = node["properties"]
    return _without_null(out)


def _without_null(node: dict[str, Any]) -> dict[str, Any]:
    options = node.get("anyOf")
    if options and {"type": "null"} in options and len(options) == 2:
        inner = next(option for option in options if option != {"type": "null"})
        outer = {key: value for key, value in node.items() if key != "anyOf"}
        node = {**inner, **outer}
    if "default" in node and node["default"] is None:
        node = {key: value for key, value in node.items() if key != "default"}
    return node


def at(schema: Node, path: Path) -> Node:
    """Return the schema of the field at `path`; empty if the path does not exist or is inside free-form data."""
    for step in path:
        if isinstance(step, int):
            schema = schema.get("items", {})
        else:
            schema = schema.get("properties", {}).get(step) or _values(schema)
    return schema


def _values(schema: Node) -> Node:
    values = schema.get("additionalProperties")
    return values if isinstance(values, Mapping) else {}


def free_form(schema: Node) -> bool:
    """Whether the field accepts any value."""
    return bool(schema.get("x-kubernetes-preserve-unknown-fields")) or schema.get("additionalProperties") is True


def allowed(schema: Node) -> str:
    """Describe the allowed values of a field."""
    if ALLOWED in schema:
        return str(schema[ALLOWED])
    if VALUES in schema:
        return _one_of(schema[VALUES])
    if "enum" in schema or "const" in schema:
        return _one_of([str(value) for value in schema.get("enum", [schema.get("const")])])
    describe = _DESCRIBE.get(str(schema.get("type")))
    return describe(schema) if describe else "a value"


def _one_of(values: list[str]) -> str:
    return values[0] if len(values) == 1 else f"one of {', '.join(values)}"


def _integer(schema: Node) -> str:
    low, high, step = schema.get("minimum"), schema.get("maximum"), schema.get("multipleOf")
    bounds = f"from {low} to {high}" if high is not None and high < 2**53 else f">= {low}"
    return f"an integer {bounds}" + (f", a multiple of {step}" if step else "")


def _number(schema: Node) -> str:
    return f"a number from {schema.get('minimum', 0):g} to {schema['maximum']:g}"


def _string(schema: Node) -> str:
    longest = schema.get("maxLength")
    return "text" if longest is None else f"text of at most {longest} characters"


def _array(schema: Node) -> str:
    low, high = schema.get("minItems", 0), schema.get("maxItems")
    count = f"{low} or more" if high is None else f"{low} to {high}"
    return f"a list of {count}, each {allowed(schema.get('items', {}))}"


def _object(schema: Node) -> str:
    if "properties" in schema:
        return f"a mapping with the fields {', '.join(schema['properties'])}"
    values = _values(schema)
    return f"a mapping of names to {allowed(values)}" if values else "a mapping"


_DESCRIBE: dict[str, Callable[[Node], str]] = {
    "integer": _integer,
    "number": _number,
    "string": _string,
    "boolean": lambda _: "true or false",
    "array": _array,
    "object": _object,
}
