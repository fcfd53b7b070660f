"""Applies a dry run's `whatIf`: a table with other numbers, on more or fewer stores."""

from __future__ import annotations

from collections import Counter

import msgspec

from evenkeel.errors import InvalidInputError
from evenkeel.model.rebalanceplan import WhatIf
from evenkeel.model.resource_loading import parse
from evenkeel.model.table import Table
from evenkeel.model.views import StoresView, StoreView

__all__ = ["what_if_stores", "what_if_table"]


def what_if_table(table: Table, what_if: WhatIf) -> Table:
    """Return the table with the changes of `what_if`; raise InvalidInputError if they are invalid."""
    document = table.document()
    document.pop("status", None)
    spec = document["spec"]
    if what_if.replicas is not None:
        spec["replicas"] = what_if.replicas
    if what_if.consensus_size is not None:
        spec["consensusSize"] = what_if.consensus_size
    found = parse(document, f"Table {table.metadata.name} with whatIf")
    assert isinstance(found, Table)
    return found


def what_if_stores(stores: StoresView, what_if: WhatIf, *, store_cluster: str) -> StoresView:
    """Return the stores with the changes of `what_if`; added stores go to the zones with the fewest stores."""
    known = {store.name: store for store in stores.stores}
    for name in what_if.remove_stores:
        if name not in known:
            there = ", ".join(sorted(known)) or "none"
            raise InvalidInputError(f"whatIf.removeStores: got {name}; allowed: existing stores ({there})")
        known[name] = msgspec.structs.replace(known[name], live=False)
    zones = Counter(store.zone for store in known.values() if store.usable)
    number = 0
    for _ in range(what_if.add_stores):
        while f"{store_cluster}-{number}" in known:
            number += 1
        zone = min(zones, key=lambda name: (zones[name], name), default="")
        zones[zone] += 1
        known[f"{store_cluster}-{number}"] = StoreView(name=f"{store_cluster}-{number}", volume="imagined", zone=zone)
    return StoresView.of(*known.values())
