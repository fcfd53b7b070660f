"""The product sets every field of its records, of the planner's views, of what groups report and of statuses.

A field that only tests set proves nothing: the code that reads it works in tests alone.

A field is set where its class is called with it, by `cls(...)` and `self.field = ...` in the class itself, and where an
object is copied with it. Of a copy the class is not known: it counts for a class that has all fields which the copy
sets, and that the module names.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from tests.repository.tree import ROOT, SOURCES

PRODUCT: Final = [path for source in SOURCES for path in sorted((ROOT / source).rglob("*.py"))]
MODEL: Final = ROOT / "operator/evenkeel/model"
GROUPS: Final = ROOT / "raft_sidecar/evenkeel_raft/shared/raft_groups.py"
RECORDS: Final = [MODEL / "views.py", GROUPS, *sorted((ROOT / "operator/evenkeel/protocol").glob("*.py"))]


class Copy(NamedTuple):
    """One call of `replace` or `model_copy`."""

    fields: frozenset[str]
    module: int
    """Which of the modules that were visited has it."""


class Setters(ast.NodeVisitor):
    """Which fields are set, by class."""

    def __init__(self) -> None:
        self.named: defaultdict[str, set[str]] = defaultdict(set)
        self.positional: Counter[str] = Counter()
        self.unpacked: set[str] = set()
        self.copies: list[Copy] = []
        self.mentioned: list[set[str]] = []
        """Every name in each module."""
        self._inside: list[str] = []
        self._foreign: set[str] = set()
        """Names that the module has from elsewhere than the product."""

    def visit_Module(self, node: ast.Module) -> None:
        self.mentioned.append(set())
        self._foreign = set()
        self.generic_visit(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if not (node.module or "").startswith("evenkeel"):
            self._foreign |= {alias.asname or alias.name for alias in node.names}

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._inside.append(node.name)
        self.generic_visit(node)
        self._inside.pop()

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        keywords = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg is not None}
        if name in ("replace", "model_copy"):
            copied = keywords.keys() if name == "replace" else _keys(keywords.get("update"))
            self.copies.append(Copy(frozenset(copied), len(self.mentioned) - 1))
        owner = self._inside[-1] if name == "cls" and self._inside else name
        if owner in self._foreign:
            self.generic_visit(node)
            return
        self.named[owner].update(keywords)
        self.positional[owner] = max(self.positional[owner], len(node.args))
        if len(keywords) < len(node.keywords) or any(isinstance(argument, ast.Starred) for argument in node.args):
            self.unpacked.add(owner)
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        own = isinstance(node.value, ast.Name) and node.value.id == "self"
        if own and isinstance(node.ctx, ast.Store) and self._inside:
            self.named[self._inside[-1]].add(node.attr)
        self.mentioned[-1].add(node.attr)
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        self.mentioned[-1].add(node.id)

    def unset(self, owners: Iterable[ast.ClassDef], known: Mapping[str, ast.ClassDef]) -> set[str]:
        """The fields with a default that nothing sets; `known` are the classes that fields may be made of."""
        return {
            f"{owner.name}.{field}"
            for owner in owners
            for position, field in enumerate(fields(owner))
            if fields(owner)[field].value is not None and not self._sets(owner, field, position, known)
        }

    def _sets(self, owner: ast.ClassDef, field: str, position: int, known: Mapping[str, ast.ClassDef]) -> bool:
        name, all_fields = owner.name, fields(owner).keys()
        if field in self.named[name] or self.positional[name] > position or name in self.unpacked:
            return True
        holders = {holder.name for holder in known.values() if name in parts(holder)} | {name}
        return any(
            field in copy.fields and copy.fields <= all_fields and holders & self.mentioned[copy.module]
            for copy in self.copies
        )


def _keys(update: ast.expr | None) -> set[str]:
    keys = update.keys if isinstance(update, ast.Dict) else []
    return {key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}


def classes(*trees: ast.Module) -> dict[str, ast.ClassDef]:
    nodes = (node for tree in trees for node in ast.walk(tree))
    return {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}


def fields(owner: ast.ClassDef) -> dict[str, ast.AnnAssign]:
    found = [node for node in owner.body if isinstance(node, ast.AnnAssign)]
    own = [node for node in found if "ClassVar" not in ast.unparse(node.annotation)]
    return {node.target.id: node for node in own if isinstance(node.target, ast.Name)}


def parts(owner: ast.ClassDef) -> set[str]:
    """The names that the annotations of a class's fields are made of."""
    found = (part for field in fields(owner).values() for part in ast.walk(field.annotation))
    return {part.id for part in found if isinstance(part, ast.Name)}


def statuses(known: Mapping[str, ast.ClassDef]) -> Iterator[ast.ClassDef]:
    """Yield every status of the API, and what its fields are made of."""
    waiting, seen = [name for name in known if name.endswith("Status")], set[str]()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            yield known[name]
            waiting += parts(known[name]) & known.keys()


def read(paths: Iterable[Path]) -> list[ast.Module]:
    return [ast.parse(path.read_text()) for path in paths]


def visited(*trees: ast.Module) -> Setters:
    setters = Setters()
    for tree in trees:
        setters.visit(tree)
    return setters


def test_every_field_is_set_by_the_product() -> None:
    """No field with a default is left to tests alone."""
    records = classes(*read(RECORDS))
    checked = records | {owner.name: owner for owner in statuses(classes(*read(sorted(MODEL.glob("*.py")))))}
    assert {"GroupReport", "StoreLoad", "TableStatus", "StoreDrain"} <= checked.keys()
    assert visited(*read(PRODUCT)).unset(checked.values(), checked) == set()


DEFINED = """
class Report:
    leading: bool
    bytes: int | None = None
class Drain:
    store: str
    bytes: int | None = None
    reason: str = ""
    @classmethod
    def of(cls, store):
        return cls(store=store, reason="x")
class Summary:
    drains: tuple[Drain, ...] = ()
"""


def found(*modules: str) -> set[str]:
    defined = ast.parse(DEFINED)
    known = classes(defined)
    return visited(defined, *map(ast.parse, modules)).unset(known.values(), known)


def test_a_field_of_one_class_does_not_stand_in_for_another() -> None:
    """The same name in another class, in a dict or in a copy of something else proves nothing."""
    nothing = {"Report.bytes", "Drain.bytes", "Summary.drains"}
    assert found() == nothing
    assert found("Report(True, bytes=1)") == nothing - {"Report.bytes"}
    assert found("Report(True, 1)") == nothing - {"Report.bytes"}
    assert found("from rich import Report\nReport(*shown, bytes=1)") == nothing
    assert found('table = {"bytes": 1, "drains": ()}', "drain.bytes = 1", "copy.replace(anything, bytes=1)") == nothing
    assert found("def f(drain: Drain): return replace(drain, bytes=1)") == nothing - {"Drain.bytes"}
    assert found("def f(drain: Drain): return drain.model_copy(update={'bytes': 1})") == nothing - {"Drain.bytes"}
    assert found("def f(drain: Drain, load): return replace(load, bytes=1, log_bytes=2)") == nothing
    assert found("def f(all: Summary): return [replace(one, bytes=1) for one in all.drains]") == nothing - {
        "Drain.bytes"
    }
