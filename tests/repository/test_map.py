"""The maps of the repository agree with the tree: package docstrings, architecture.md, the README and .importlinter."""

from __future__ import annotations

import ast
import configparser
import re
from pathlib import Path

import pytest

from tests.repository.tree import PACKAGES, ROOT, tracked

SUBPACKAGES = sorted(
    file.parent for package in PACKAGES for file in package.rglob("__init__.py") if file.parent.name != "__pycache__"
)


def listed_modules(docstring: str) -> list[str]:
    """The names in the `Modules:` section of a package's docstring."""
    _, _, section = docstring.partition("\nModules:\n")
    return re.findall(r"^ {4}(\w+) +\S", section, re.MULTILINE)


def modules_of(package: Path) -> list[str]:
    """The modules and packages directly in a package."""
    found = [file.stem for file in package.glob("*.py") if file.stem not in ("__init__", "__main__")]
    return sorted(found + [file.parent.name for file in package.glob("*/__init__.py")])


@pytest.mark.parametrize("package", SUBPACKAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_package_docstring_lists_its_modules(package: Path) -> None:
    """The `__init__` docstring of each package lists exactly its modules, one line each."""
    docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    assert sorted(listed_modules(docstring)) == modules_of(package)


def test_module_lists_are_read() -> None:
    """Only indented names after `Modules:` count."""
    docstring = "A package.\n\n    example  code\n\nModules:\n    one     does this\n    two_2   does that\n"
    assert listed_modules(docstring) == ["one", "two_2"]
    assert listed_modules("A package.\n\n    one  code\n") == []


def contracts() -> dict[str, list[list[str]]]:
    """The layers of each layers contract in .importlinter, top first, by the package that contains them."""
    config = configparser.ConfigParser()
    config.read(ROOT / ".importlinter")
    return {
        section["containers"]: [re.split(r"\s*[|:]\s*", line) for line in section["layers"].split("\n") if line.strip()]
        for section in config.values()
        if section.get("type") == "layers"
    }


LAYERED = ("evenkeel", "evenkeel_operator", "evenkeel_raft", "evenkeel_store")


def test_every_large_package_has_layers() -> None:
    """Each program's package has a layers contract, like the library."""
    assert sorted(contracts()) == sorted(LAYERED)


@pytest.mark.parametrize("package", LAYERED)
def test_architecture_names_the_layers(package: str) -> None:
    """docs/architecture.md names exactly the layers of .importlinter, in an order that the contract allows."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    layers = contracts()[package]
    named = re.findall(rf"^\| `{package}\.(\w+)` \|", text, re.MULTILINE)
    rank = {name: place for place, layer in enumerate(layers) for name in layer}
    assert sorted(named) == sorted(rank)
    assert named == sorted(named, key=lambda name: rank[name])


def test_architecture_names_files_that_exist() -> None:
    """Every path in docs/architecture.md exists, and "Where is ...?" answers at least twenty questions."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    paths = re.findall(r"`((?:operator|raft_sidecar|spark_operator_hooks|tests|crds)/[\w./]+)`", text)
    assert [path for path in paths if not (ROOT / path).exists()] == []
    _, _, answers = text.partition("## Where is ...?")
    assert len(re.findall(r"^\| .*\? \|", answers, re.MULTILINE)) >= 20


def test_readme_lists_the_folders() -> None:
    """The README's table of folders has every folder of the repository, and every package."""
    folders = {name.split("/")[0] for name in tracked("") if "/" in name and not name.startswith(".")}
    rows = re.findall(r"^\| (`[a-z].*?) \| (.*?) \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    named = {name.split("/")[0] for row, _ in rows for name in re.findall(r"`([\w./]+/?\w*)`", row)}
    assert named & folders == folders
    packages = {name for _, row in rows for name in re.findall(r"`(\w+)`", row)}
    assert packages >= {package.name for package in PACKAGES}


def test_every_page_is_reachable() -> None:
    """Every page of docs/ is reachable from the README by links."""
    seen: set[Path] = set()
    queue = [ROOT / "README.md"]
    while queue:
        page = queue.pop()
        if page in seen or not page.exists():
            continue
        seen.add(page)
        links = re.findall(r"\]\(([^)#:\s]+\.md)(?:#[^)]*)?\)", page.read_text())
        queue += [(page.parent / link).resolve() for link in links]
    assert sorted((ROOT / "docs").glob("*.md")) == sorted(page for page in seen if page.parent == ROOT / "docs")
