"""A Table's spec as its record in the metastore has it: what every store of the cluster can read.

Stores of the first release read the spec strictly and know nothing of a table whose spec has a field that is new to
them. So newer fields are written only from the cluster version on that every store supports, and only where a user set
them: a field at its default would change the record of every table, and with it what plans rest on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from evenkeel.model.table import TableSpec
from evenkeel.versions import Feature, supports

__all__ = ["spec_for_record"]

_Fields = Mapping[str, "_Fields | None"]
"""Names of fields, and the fields in each; None where users choose what is in it."""
_COLUMN: Final[_Fields] = dict.fromkeys(("comment", "default", "name", "nullable", "type"))
_FIRST_RELEASE: Final[_Fields] = {
    **dict.fromkeys(("approval", "consensusSize", "partitions", "paused", "replicas", "storeCluster")),
    "changes": dict.fromkeys(("enabled", "retention")),
    "movement": dict.fromkeys(("bytesPerSecond", "lostAfter", "maxConcurrent", "retarget")),
    "placement": dict.fromkeys(("maxPerStore", "storeSelector", "zoneSpread")),
    "rebalancer": dict.fromkeys(("class", "config", "mode")),
    "schema": {"columns": _COLUMN, "partitionBy": None, "primaryKey": None},
}
"""The fields that stores of every release know."""


def spec_for_record(spec: TableSpec, *, version: int) -> msgspec.Raw:
    """The spec as a cluster of this version can read it."""
    everything = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    chosen = spec.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)
    readable = _readable(everything, chosen if supports(version, Feature.TABLE_FIELDS) else {}, _FIRST_RELEASE)
    return msgspec.Raw(msgspec.json.encode(readable))


def _readable(value: Any, chosen: Any, known: _Fields | None) -> Any:
    """The fields that are known, and of the others those in `chosen`."""
    if known is None:
        return value
    if isinstance(value, list):
        picked = chosen if isinstance(chosen, list) and len(chosen) == len(value) else [{}] * len(value)
        return [_readable(each, of_it, known) for each, of_it in zip(value, picked, strict=True)]
    if not isinstance(value, dict):
        return value
    of_it = chosen if isinstance(chosen, dict) else {}
    return {
        name: _readable(field, of_it.get(name), known[name]) if name in known else field
        for name, field in value.items()
        if name in known or name in of_it
    }
