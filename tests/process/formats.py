"""Writes examples of every message and record of whichever release the interpreter has, and reads those of another.

It is a script, not a module of the tests, so that an interpreter of the previous release can run it:

    python -P formats.py write           every example, by format and kind, as JSON
    python -P formats.py read < FILE     what this release reads in those examples, or why it cannot

Examples are derived from the types: one with the first choice for each field, and one more for every other choice of
any field (each member of an enum, each kind of a union). A format that changes is therefore an example that changes.
Of resources, what an operator writes is here: statuses, and the specs of objects that it makes itself.
"""

from __future__ import annotations

import base64
import importlib
import json
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import inspect

RENAMED: dict[str, str] = {
    "evenkeel_store.engine.group_metadata": "evenkeel_store.heads",
    "evenkeel_store.engine.journal": "evenkeel_store.journal",
    "evenkeel_store.engine.log_entries": "evenkeel_store.entries",
    "evenkeel_store.engine.snapshot_files": "evenkeel_store.snapshots",
    "evenkeel_raft.host.replica_label": "evenkeel_raft.host.labels",
    "ReplicaLabel": "Label",
    "evenkeel_raft.net.peer_frames": "evenkeel_raft.net.frames",
    "evenkeel_raft.log.log_records": "evenkeel_raft.log.records",
    "evenkeel_raft.core.raft_types": "evenkeel_raft.core.types",
    "evenkeel_raft.net.files.snapshot_manifest": "evenkeel_raft.net.files.manifest",
    "evenkeel.wire.socket_messages": "evenkeel.wire.messages",
    "InhibitionOrder": "Drain",
}
"""By the present name of a module or type, its name in the previous release."""

_DEEPEST = 8
_DIFFERENT = 97
"""So many fields have values of their own."""


def formats() -> dict[str, tuple[Any, str]]:
    """The types that are written, by the name of their format, and how."""
    found: dict[str, tuple[Any, str]] = {}
    for name, module, attribute, how in (
        ("peer link", "evenkeel_raft.net.peer_frames", "AnyFrame", "msgpack"),
        ("socket: sidecar", "evenkeel.wire.socket_messages", "FromSidecar", "msgpack"),
        ("socket: store", "evenkeel.wire.socket_messages", "FromStore", "msgpack"),
        ("raft log", "evenkeel_raft.log.log_records", "StoredRecord", "msgpack"),
        ("raft log: label", "evenkeel_raft.host.replica_label", "ReplicaLabel", "msgpack"),
        ("raft log: configuration", "evenkeel_raft.core.raft_types", "ConfChange", "msgpack"),
        ("snapshot: manifest", "evenkeel_raft.net.files.snapshot_manifest", "Manifest", "msgpack"),
        ("snapshot: about", "evenkeel_store.engine.snapshot_files", "_About", "json"),
        ("store: entry", "evenkeel_store.engine.log_entries", "Entry", "msgpack"),
        ("store: group", "evenkeel_store.engine.journal", "KeptGroup", "msgpack"),
        ("store: step", "evenkeel_store.engine.group_metadata", "Step", "msgpack"),
    ):
        names = _module(module)
        found[name] = getattr(names, attribute if hasattr(names, attribute) else RENAMED[attribute]), how
    for prefix, module in (("record", "evenkeel.protocol.records"), ("flight", "evenkeel.wire.flight")):
        names = _module(module)
        for name in names.__all__:
            kind = getattr(names, name)
            if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
                found[f"{prefix}: {RENAMED.get(name, name)}"] = kind, "json"
    for module, name in (
        ("storecluster", "StoreClusterStatus"),
        ("table", "TableStatus"),
        ("partitionassignment", "PartitionAssignmentSpec"),
        ("partitionassignment", "PartitionAssignmentStatus"),
        ("rebalanceplan", "RebalancePlanSpec"),
        ("rebalanceplan", "RebalancePlanStatus"),
    ):
        found[f"resource: {name}"] = getattr(importlib.import_module(f"evenkeel.model.{module}"), name), "document"
    return found


def _module(name: str) -> Any:
    """Import a module by its present name, or by the name that the previous release has for it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return importlib.import_module(RENAMED[name])


def examples(node: inspect.Type, at: int = 0, depth: int = 0) -> list[Any]:
    """Values of a type, in plain Python, the simplest first; `at` makes those of different fields differ."""
    if depth > _DEEPEST:
        return []
    match node:
        case inspect.UnionType(types=types):
            return [value for each in types for value in examples(each, at, depth + 1)]
        case inspect.StructType():
            return list(_structs(node, at, depth))
        case inspect.EnumType(cls=cls):
            return [member.value for member in cls]
        case inspect.LiteralType(values=values):
            return list(values)
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item) | inspect.SetType(item_type=item):
            return [[value] for value in examples(item, at, depth + 1)] or [[]]
        case inspect.TupleType(item_types=items):
            return [[examples(item, at, depth + 1)[0] for item in items]]
        case inspect.DictType(key_type=key, value_type=value):
            return [{examples(key, at, depth + 1)[0]: each} for each in examples(value, at, depth + 1)] or [{}]
        case inspect.Metadata(type=inner):
            return examples(inner, at, depth)
        case _:
            return _leaf(node, at)


def _leaf(node: inspect.Type, at: int) -> list[Any]:
    match node:
        case inspect.IntType(ge=least):
            return [max(at + 1, least or 0)]
        case inspect.FloatType():
            return [at + 0.5]
        case inspect.BoolType():
            return [True, False]
        case inspect.StrType() | inspect.AnyType():
            return [f"x{at}"]
        case inspect.BytesType() | inspect.MemoryViewType() | inspect.ByteArrayType():
            return [b"x%d" % at]
        case inspect.NoneType():
            return [None]
        case inspect.RawType():
            return [msgspec.Raw(b"{}")]
        case _:
            return []


def _structs(node: inspect.StructType, at: int, depth: int) -> Iterator[Any]:
    choices = [
        (field, examples(field.type, (7 * at + place) % _DIFFERENT, depth + 1))
        for place, field in enumerate(node.fields)
    ]
    known = [(field, values) for field, values in choices if values]
    if len(known) < len(choices) and (node.array_like or any(f.required for f, values in choices if not values)):
        return
    first = {field.encode_name: values[0] for field, values in known}
    yield _laid_out(node, first)
    for field, values in known:
        for value in values[1:]:
            yield _laid_out(node, {**first, field.encode_name: value})


def _laid_out(node: inspect.StructType, fields: dict[str, Any]) -> Any:
    if node.array_like:
        return [*([] if node.tag is None else [node.tag]), *fields.values()]
    return {**({} if node.tag is None else {node.tag_field: node.tag}), **fields}


def documents(node: dict[str, Any], schemas: dict[str, Any]) -> list[Any]:
    """Values that a JSON schema allows, the simplest first."""
    if "$ref" in node:
        return documents(schemas[node["$ref"].rpartition("/")[2]], schemas)
    for key in ("anyOf", "oneOf", "allOf"):
        if key in node:
            return [value for each in node[key] for value in documents(each, schemas)]
    for key in ("enum", "x-evenkeel-values"):
        if key in node:
            return list(node[key])
    match node.get("type"):
        case "object" if "properties" in node:
            fields = {key: documents(each, schemas) for key, each in node["properties"].items()}
            return _objects(fields, required=node.get("required", ()))
        case "object":
            values = node.get("additionalProperties")
            return [{"x": value} for value in documents(values, schemas)] if isinstance(values, dict) else [{}]
        case "array":
            return [[value] for value in documents(node["items"], schemas)]
        case "integer" | "number":
            return [0 if "multipleOf" in node else max(1, node.get("minimum", 1))]
        case "boolean":
            return [True, False]
        case "null":
            return [None]
        case _:
            return [_text(node)]


def _objects(fields: dict[str, list[Any]], *, required: Sequence[str]) -> list[Any]:
    first = {key: values[0] for key, values in fields.items()}
    others = [{**first, key: value} for key, values in fields.items() for value in values[1:]]
    # Some fields exclude each other.
    least = {key: first[key] for key in required}
    return [first, *others, *({**least, key: value} for key, value in first.items())]


def _text(node: dict[str, Any]) -> str:
    tried = ("2026-01-01T00:00:00Z",) if node.get("format") == "date-time" else ("x", "0123abcd")
    return next((text for text in tried if re.search(node.get("pattern", ""), text)), tried[0])


def _written_documents(kind: Any) -> list[str]:
    schema = kind.model_json_schema(by_alias=True)
    found = [_read_document(kind, json.dumps(value)) for value in documents(schema, schema.get("$defs", {}))]
    kept = [json.dumps(value) for value in found if isinstance(value, dict)]
    return [base64.b64encode(text.encode()).decode() for text in dict.fromkeys(kept)]


def _read_document(kind: Any, data: str | bytes) -> Any:
    try:
        return kind.model_validate_json(data).model_dump(mode="json", by_alias=True, exclude_defaults=True)
    except ValueError as error:
        return f"refused: {error}"


def write() -> dict[str, list[str]]:
    """Examples of every format as they are written."""
    written: dict[str, list[str]] = {}
    for name, (kind, how) in formats().items():
        if how == "document":
            written[name] = _written_documents(kind)
            continue
        codec = msgspec.json if how == "json" else msgspec.msgpack
        values = [msgspec.convert(value, kind) for value in examples(inspect.type_info(kind))]
        written[name] = [base64.b64encode(codec.encode(value)).decode() for value in values]
    return written


def read(written: dict[str, list[str]]) -> dict[str, list[Any]]:
    """What this release finds in each example; a text that begins with `refused` where it cannot read it."""
    known, found = formats(), {}
    for name, values in written.items():
        if name not in known:
            found[name] = ["refused: no such format"] * len(values)
            continue
        kind, how = known[name]
        if how == "document":
            found[name] = [_read_document(kind, base64.b64decode(value)) for value in values]
            continue
        codec = msgspec.json if how == "json" else msgspec.msgpack
        found[name] = [_read(codec, kind, base64.b64decode(value)) for value in values]
    return found


def _read(codec: Any, kind: Any, data: bytes) -> Any:
    try:
        return msgspec.to_builtins(codec.decode(data, type=kind), enc_hook=bytes)
    except (ValueError, RecursionError) as error:
        return f"refused: {error}"


if __name__ == "__main__":
    print(json.dumps(write() if sys.argv[1] == "write" else read(json.load(sys.stdin)), default=repr))
