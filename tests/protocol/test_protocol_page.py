"""docs/protocol.md agrees with the code."""

from __future__ import annotations

import re
from pathlib import Path

from evenkeel.protocol.keys import Keys
from tests.explorer.mutations import MUTATIONS

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """Return the text under one heading."""
    return PAGE.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def test_every_rule_has_its_mutation() -> None:
    """The table of rules has each of the explorer's mutations once, and no other."""
    named = re.findall(r"\| `([\w-]+)` \|$", section("Why the rules are as they are"), re.MULTILINE)
    assert sorted(named) == sorted(mutation.name for mutation in MUTATIONS)


def test_every_key_is_there() -> None:
    """The table of keys has every kind of key."""
    keys = Keys(namespace="n", store_cluster="c")
    table = (keys.table("<t>"), keys.tombstone("<t>"), keys.plan_head("<t>"), keys.rebalancer_context("<t>"))
    partition = (*keys.partition_prefixes("<t>").all(), keys.leaders("<t>"), keys.leader_target("<t>", 0)[:-6])
    stores = (
        keys.store("<s>"),
        keys.store_state("<s>"),
        keys.inhibition("<s>"),
        keys.load("<s>"),
        keys.epoch,
    )
    expected = [*table, *(f"{prefix}<p>" for prefix in partition), *stores]
    listed = section("Keys")
    assert [key for key in expected if f"`{key.removeprefix(keys.root)}`" not in listed] == []
