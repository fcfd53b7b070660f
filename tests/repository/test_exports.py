"""What a module exports is explicit: it exists, and nothing else is used from other folders."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.repository.tree import PACKAGES, ROOT

MODULES = [module.name for package in PACKAGES for module in pkgutil.walk_packages([str(package)], f"{package.name}.")]
USERS = sorted(file for folder in (*PACKAGES, ROOT / "bench", ROOT / "demo") for file in folder.rglob("*.py"))


def imported_from_us(tree: ast.Module) -> Iterator[tuple[str, str]]:
    ours = {package.name for package in PACKAGES}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in ours:
            yield from ((node.module, alias.name) for alias in node.names)


def dotted(folder: Path) -> str:
    """Return the import name of a package's folder; the first folder only says which process it is for."""
    return ".".join(folder.relative_to(ROOT).parts[1:])


def need_spark() -> None:
    """Spark is installed for `make test-spark` alone, which runs these tests again."""
    pytest.importorskip("pyspark", reason="`make setup-spark` installs it")


def exported(module: str) -> set[str]:
    if "spark" in module:
        need_spark()
    return set(getattr(importlib.import_module(module), "__all__", ()))


@pytest.mark.parametrize("name", MODULES)
def test_exported_names_exist(name: str) -> None:
    """`__all__` promises nothing that is not there."""
    promised = exported(name)
    module = importlib.import_module(name)
    assert {name for name in promised if not hasattr(module, name)} == set()


@pytest.mark.parametrize("user", USERS, ids=[str(user.relative_to(ROOT)) for user in USERS])
def test_only_exported_names_are_used(user: Path) -> None:
    """A name imported from a module in another folder is one that the module exports, or a module itself."""
    names = imported_from_us(ast.parse(user.read_text()))
    foreign = [(module, name) for module, name in names if module.rpartition(".")[0] != dotted(user.parent)]
    assert [pair for pair in foreign if pair[1] not in exported(pair[0]) and ".".join(pair) not in MODULES] == []
