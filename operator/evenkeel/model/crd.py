"""CustomResourceDefinitions from the models: `python -m evenkeel.model.crd crds/`.

The API server takes *structural* schemas only: no references, one type per node, no `additionalProperties: false`
(unknown fields are pruned, and refused by `kubectl` before). What is left out of a schema here is therefore a matter of
form; what a field may hold is the same in both, because both come from one model.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from evenkeel.model.json_schema import Node, schema_of
from evenkeel.model.resource_base import DNS_LABEL, GROUP, UNSEEN, VALUES, VERSION
from evenkeel.model.resource_loading import KINDS

__all__ = ["SCHEMA_ANNOTATION", "crd", "main", "render", "schema_hashes"]

SCHEMA_ANNOTATION = "evenkeel.dev/schema-hash"
"""On a definition: a hash of its content, by which an operator recognizes the one it comes with."""


class Column(NamedTuple):
    """One column of `kubectl get`; those of priority 1 show with `-o wide`."""

    name: str
    path: str
    type: str = "string"
    priority: int = 0

    def entry(self) -> dict[str, Any]:
        """As the CRD spells it."""
        wide = {"priority": self.priority} if self.priority else {}
        return {"name": self.name, "type": self.type, "jsonPath": self.path, **wide}


class Face(NamedTuple):
    """How a kind shows itself to `kubectl`."""

    plural: str
    short: str
    columns: Sequence[Column]
    scale: Mapping[str, str] | None = None


def _condition(kind: str) -> str:
    return f'.status.conditions[?(@.type=="{kind}")].status'


_AGE = Column("Age", ".metadata.creationTimestamp", "date")

FACES: dict[str, Face] = {
    "StoreCluster": Face(
        "storeclusters",
        "ekc",
        (
            Column("Ready", _condition("Ready")),
            Column("Stores", ".spec.stores", "integer"),
            Column("Up", ".status.readyStores", "integer"),
            Column("Version", ".status.version", "integer"),
            Column("Tables", ".status.tables", "integer"),
            Column("Replicas", ".status.replicas", "integer", 1),
            Column("Zones", ".status.zonesFrom", "string", 1),
            Column("Message", '.status.conditions[?(@.type=="Ready")].message', "string", 1),
            _AGE,
        ),
        {
            "specReplicasPath": ".spec.stores",
            "statusReplicasPath": ".status.stores",
            "labelSelectorPath": ".status.selector",
        },
    ),
    "Table": Face(
        "tables",
        "ekt",
        (
            Column("Ready", _condition("Ready")),
            Column("Partitions", ".spec.partitions", "integer"),
            Column("Replicas", ".spec.replicas", "integer"),
            Column("Moving", ".status.moving", "integer"),
            Column("Leaderless", ".status.leaderless", "integer"),
            Column("Balanced", _condition("Balanced"), "string", 1),
            Column("Progress", ".status.progress.percentage", "integer", 1),
            Column("Mode", ".spec.rebalancer.mode", "string", 1),
            Column("Stores", ".spec.storeCluster", "string", 1),
            Column("Message", '.status.conditions[?(@.type=="Ready")].message', "string", 1),
            _AGE,
        ),
        {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"},
    ),
    "PartitionAssignment": Face(
        "partitionassignments",
        "eka",
        (
            Column("Table", ".spec.table"),
            Column("From", ".spec.from", "integer"),
            Column("Moving", ".status.moving", "integer"),
            Column("Leaderless", ".status.leaderless", "integer"),
            Column("Accepted", _condition("Accepted"), "string", 1),
            _AGE,
        ),
    ),
    "RebalancePlan": Face(
        "rebalanceplans",
        "ekp",
        (
            Column("Table", ".spec.table"),
            Column("Number", ".spec.number", "integer"),
            Column("State", ".status.state"),
            Column("Moves", ".status.totals.moves", "integer"),
            Column("Bytes", ".status.totals.bytes", "integer"),
            Column("Progress", ".status.progress.percentage", "integer"),
            Column("Hash", ".status.hash", "string", 1),
            _AGE,
        ),
    ),
}


def crd(kind: str) -> dict[str, Any]:
    """The definition of one kind, as data."""
    face = FACES[kind]
    subresources: dict[str, Any] = {"status": {}}
    if face.scale is not None:
        subresources["scale"] = dict(face.scale)
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _root(kind)},
        "subresources": subresources,
        "additionalPrinterColumns": [column.entry() for column in face.columns],
    }
    names = {
        "kind": kind,
        "listKind": f"{kind}List",
        "plural": face.plural,
        "singular": kind.lower(),
        "shortNames": [face.short],
        "categories": ["evenkeel"],
    }
    spec = {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{face.plural}.{GROUP}", "annotations": {SCHEMA_ANNOTATION: _hash(spec)}},
        "spec": spec,
    }


def _hash(spec: Mapping[str, Any]) -> str:
    encoded = json.dumps(spec, sort_keys=True).encode()
    return hashlib.blake2b(encoded, digest_size=8).hexdigest()


@cache
def schema_hashes() -> Mapping[str, str]:
    """By name, the hash of each definition that this release comes with."""
    found = (crd(kind)["metadata"] for kind in FACES)
    return {metadata["name"]: metadata["annotations"][SCHEMA_ANNOTATION] for metadata in found}


def _root(kind: str) -> dict[str, Any]:
    model = KINDS[kind]
    schema = schema_of(model)
    name = {"type": "string", "pattern": DNS_LABEL, "maxLength": model.NAME_LENGTH}
    root = {
        "type": "object",
        "description": schema["description"],
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object", "properties": {"name": name}},
            "spec": _structural(schema["properties"]["spec"], defaults=True),
            # Without a status kstatus takes an object for current, though no operator has seen it.
            "status": {**_structural(schema["properties"]["status"], defaults=False), "default": dict(UNSEEN)},
        },
    }
    rules = schema.get("x-kubernetes-validations")
    return {**root, "x-kubernetes-validations": rules} if rules else root


_KEPT = (
    "type",
    "format",
    "description",
    "enum",
    "pattern",
    "minimum",
    "maximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "maxProperties",
    "required",
    "x-kubernetes-int-or-string",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-validations",
)


def _structural(node: Node, *, defaults: bool) -> dict[str, Any]:
    out = {key: node[key] for key in _KEPT if key in node}
    if "const" in node:
        out["enum"] = [node["const"]]
    if VALUES in node:
        out["description"] = " ".join(filter(None, (node.get("description"), _known(node[VALUES]))))
    if node.get("type") == "integer":
        out["format"] = "int32" if node.get("maximum", 0) < 2**31 else "int64"
    if node.get("type") == "array":
        # Said of every list: whoever applies one replaces it whole, unless its entries have keys.
        out.setdefault("x-kubernetes-list-type", "atomic")
    if "x-kubernetes-int-or-string" in node:
        out["anyOf"] = node["anyOf"]
    if "properties" in node:
        children = node["properties"].items()
        out["properties"] = {name: _structural(child, defaults=defaults) for name, child in children}
    if "items" in node:
        out["items"] = _structural(node["items"], defaults=defaults)
    if isinstance(values := node.get("additionalProperties"), Mapping) and "properties" not in node:
        out["additionalProperties"] = _structural(values, defaults=defaults)
    if defaults and node.get("default", "") != "":
        out["default"] = _default(out) if "properties" in out else node["default"]
    return out


def _known(values: Sequence[str]) -> str:
    return f"One of {', '.join(values)}; a newer release may write others."


def _default(node: Node) -> dict[str, Any]:
    """An object's default spelt out, because the API server runs the rules on it before it fills in the fields'."""
    return {name: child["default"] for name, child in node["properties"].items() if "default" in child}


def render(kind: str) -> str:
    """The definition of one kind, as the YAML in `crds/`."""
    head = "# Generated from the models in operator/evenkeel/model by `make crds`; do not edit.\n"
    return head + yaml.dump(crd(kind), Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    """Without anchors: a reader, and some tools, should not have to follow them."""

    def ignore_aliases(self, data: object) -> bool:
        """Never refer back."""
        return True


def main(arguments: Sequence[str]) -> None:
    """Write all definitions into the folder given."""
    if len(arguments) != 1:
        sys.exit("usage: python -m evenkeel.model.crd FOLDER")
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    for kind, face in FACES.items():
        (folder / f"{face.plural}.yaml").write_text(render(kind))


if __name__ == "__main__":
    main(sys.argv[1:])
