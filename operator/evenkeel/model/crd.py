"""Generates the CustomResourceDefinitions from the models: `python -m evenkeel.model.crd crds/`.

The API server accepts only *structural* schemas: no references, one type per node, no `additionalProperties: false`
(it prunes unknown fields, and `kubectl` refuses them). The allowed values of a field are those of the model.
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
from evenkeel.model.resource_base import DNS_LABEL, GROUP, UNOBSERVED, VALUES, VERSION
from evenkeel.model.resource_loading import KINDS

__all__ = ["SCHEMA_ANNOTATION", "crd", "main", "render", "schema_hashes"]

SCHEMA_ANNOTATION = "evenkeel.dev/schema-hash"
"""Annotation with a hash of the definition, by which an operator recognizes the one of its own release."""


class Column(NamedTuple):
    """A column of `kubectl get`; one with priority 1 is shown only with `-o wide`."""

    name: str
    path: str
    type: str = "string"
    priority: int = 0

    def entry(self) -> dict[str, Any]:
        """Return the entry of `additionalPrinterColumns`."""
        wide = {"priority": self.priority} if self.priority else {}
        return {"name": self.name, "type": self.type, "jsonPath": self.path, **wide}


class Presentation(NamedTuple):
    """Names, columns and scale subresource of a kind in `kubectl`."""

    plural: str
    short: str
    columns: Sequence[Column]
    scale: Mapping[str, str] | None = None


def _condition(kind: str) -> str:
    return f'.status.conditions[?(@.type=="{kind}")].status'


_AGE = Column("Age", ".metadata.creationTimestamp", "date")

PRESENTATIONS: dict[str, Presentation] = {
    "StoreCluster": Presentation(
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
    "Table": Presentation(
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
    "PartitionAssignment": Presentation(
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
    "RebalancePlan": Presentation(
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
    """Return the definition of a kind as data."""
    shown = PRESENTATIONS[kind]
    subresources: dict[str, Any] = {"status": {}}
    if shown.scale is not None:
        subresources["scale"] = dict(shown.scale)
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _root(kind)},
        "subresources": subresources,
        "additionalPrinterColumns": [column.entry() for column in shown.columns],
    }
    names = {
        "kind": kind,
        "listKind": f"{kind}List",
        "plural": shown.plural,
        "singular": kind.lower(),
        "shortNames": [shown.short],
        "categories": ["evenkeel"],
    }
    spec = {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{shown.plural}.{GROUP}", "annotations": {SCHEMA_ANNOTATION: _hash(spec)}},
        "spec": spec,
    }


def _hash(spec: Mapping[str, Any]) -> str:
    encoded = json.dumps(spec, sort_keys=True).encode()
    return hashlib.blake2b(encoded, digest_size=8).hexdigest()


@cache
def schema_hashes() -> Mapping[str, str]:
    """Return the hash of each definition of this release, by name."""
    found = (crd(kind)["metadata"] for kind in PRESENTATIONS)
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
            # Without a status, kstatus would report an object as current before an operator has observed it.
            "status": {**_structural(schema["properties"]["status"], defaults=False), "default": dict(UNOBSERVED)},
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
        # Server-side apply replaces a list as a whole unless its entries have keys.
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
    """Return the default of an object in full: the API server checks rules before it applies the fields' defaults."""
    return {name: child["default"] for name, child in node["properties"].items() if "default" in child}


def render(kind: str) -> str:
    """Return the definition of a kind as the YAML in `crds/`."""
    head = "# Generated from the models in operator/evenkeel/model by `make crds`; do not edit.\n"
    return head + yaml.dump(crd(kind), Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    """Writes no anchors, which some tools do not support."""

    def ignore_aliases(self, data: object) -> bool:
        """Write repeated values in full."""
        return True


def main(arguments: Sequence[str]) -> None:
    """Write all definitions into a folder."""
    if len(arguments) != 1:
        sys.exit("usage: python -m evenkeel.model.crd FOLDER")
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    for kind, shown in PRESENTATIONS.items():
        (folder / f"{shown.plural}.yaml").write_text(render(kind))


if __name__ == "__main__":
    main(sys.argv[1:])
