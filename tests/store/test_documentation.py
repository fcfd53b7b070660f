"""docs/store.md is true: its code runs, and its tables list what exists."""

from __future__ import annotations

import asyncio
import re
import textwrap
from pathlib import Path
from typing import Any

import prometheus_client.parser as prometheus

from evenkeel.wire import flight
from evenkeel_store.process import options
from evenkeel_store.process.metrics import Metrics
from tests.repository.tree import ROOT, shown
from tests.store.serving import ORDERS, Store, table_record

PAGE = (ROOT / "docs" / "store.md").read_text()


async def test_code_of_the_page(tmp_path: Path) -> None:
    """The page's code runs from top to bottom against a store."""
    blocks = shown(ROOT / "docs" / "store.md", "python")
    assert len(blocks) > 5
    async with Store(tmp_path) as store:
        await store.table(table_record(ORDERS, changes={}))
        names: dict[str, Any] = {"address": store.address}

        def run() -> None:
            for block in blocks:
                exec(compile(textwrap.dedent(block), "docs/store.md", "exec"), names)
            names["client"].close()

        await asyncio.to_thread(run)
        families = prometheus.text_string_to_metric_families(Metrics(store.state_machine, store.end).render().decode())
        exported = {f"{family.name}_total" if family.type == "counter" else family.name for family in families}
    assert exported == set(re.findall(r"`(evenkeel_store_\w+)`", PAGE))


def test_errors_of_the_page() -> None:
    """The table of errors lists every kind."""
    table = PAGE.partition("## Errors")[2].partition("## Limits")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(flight._KINDS)


def test_flags_of_the_page() -> None:
    """The page lists every flag."""
    assert {f"--{flag.name}" for flag in options._FLAGS} == set(
        re.findall(r"`(--[a-z-]+)`", PAGE.partition("| flags |")[2].partition("The address")[0])
    )


def test_page_lists_the_fields_of_a_ticket() -> None:
    """The page's table of ticket fields has exactly the fields of a `ReadRequest`."""
    table = PAGE.partition("A ticket is JSON")[2].partition("Filters are lists")[0]
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", table, re.MULTILINE)
    listed = [field.strip("`") for row in rows for field in row.split(", ")]
    assert sorted(listed) == sorted(flight.ReadRequest.__struct_fields__)
