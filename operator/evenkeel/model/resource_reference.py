"""Generates the field tables of docs/resources.md: `python -m evenkeel.model.resource_reference docs/resources.md`.

Only the parts between `<!-- fields: Table.spec -->` and `<!-- end -->` are generated; the rest is written by hand.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from evenkeel.model.json_schema import Node, allowed, at, schema_of
from evenkeel.model.resource_loading import KINDS

__all__ = ["main", "render"]

_BLOCK = re.compile(r"(<!-- fields: (\w+)\.(\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def render(page: str) -> str:
    """Return the page with its tables generated again."""
    return _BLOCK.sub(lambda match: f"{match[1]}{_table(match[2], match[3])}{match[4]}", page)


def _table(kind: str, part: str) -> str:
    cells: list[tuple[str, ...]] = list(_rows(at(schema_of(KINDS[kind]), (part,)), ""))
    head: tuple[str, ...] = ("field", "allowed", "default", "meaning")
    if part == "status":
        head, cells = ("field", "holds", "meaning"), [(name, words, meaning) for name, words, _, meaning in cells]
    lines = [head, ("---",) * len(head), *cells]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _rows(node: Node, prefix: str) -> Iterator[tuple[str, str, str, str]]:
    for name, child in node["properties"].items():
        path = f"{prefix}{name}"
        inner = _children(child)
        words = allowed(child) if inner is None else _container(child)
        default = _default(child, required=name in node.get("required", ()))
        yield f"`{path}`", words.replace("|", "\\|"), default, _meaning(child)
        if inner is not None:
            yield from _rows(inner, f"{path}[]." if child.get("type") == "array" else f"{path}.")


def _children(node: Node) -> Node | None:
    """Return the object schema whose fields get their own rows, or None."""
    if node.get("type") == "array":
        return _children(node["items"])
    return node if "properties" in node else None


def _container(node: Node) -> str:
    if node.get("type") != "array":
        return "a mapping"
    return f"a list of {node.get('minItems', 0)} to {node['maxItems']}" if "maxItems" in node else "a list"


def _default(node: Node, *, required: bool) -> str:
    if required:
        return "required"
    value = node.get("default", "")
    return "" if value in ("", [], {}) or "properties" in node else f"`{json.dumps(value)}`".replace('"', "")


def _meaning(node: Node) -> str:
    return " ".join(str(node.get("description", "")).split())


def main(arguments: Sequence[str]) -> None:
    """Update the given pages."""
    for name in arguments:
        page = Path(name)
        page.write_text(render(page.read_text()))


if __name__ == "__main__":
    main(sys.argv[1:])
