"""The tree itself: what may stand in it, and that each package is known to every tool that must know it."""

from __future__ import annotations

import configparser
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts.check_tree import problems
from tests.repository.tree import PACKAGES, ROOT

LOCKS = {name: (ROOT / name).read_text() for name in ("requirements.lock", "requirements-spark.lock")}
EXTRAS = {"requirements.lock": ("cli", "dev"), "requirements-spark.lock": ("spark",)}


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.mark.parametrize(
    "line",
    [
        "# TO" + "DO: later",
        "<" * 7 + " HEAD",
        "path = '/ho" + "me/ann/evenkeel'",
        "--extra-index-" + "url = x",
        "see http" + "://mirror.example:8080/simple/",
        "cd /some/where/evenkeel/",
    ],
)
def test_forbidden_line_is_found(line: str) -> None:
    """Each kind of forbidden line is found, with its place."""
    assert [
        found.split(" ")[0] for found in problems("x.md", f"fine\n{line}\n", root=Path("/some/where/evenkeel"))
    ] == ["x.md:2:"]


def test_too_long_module_is_found() -> None:
    """A module past the limit is found; other files may be as long as they like."""
    text = "pass\n" * 601
    assert len(list(problems("x.py", text))) == 1
    assert not list(problems("x.lock", text))


@pytest.mark.parametrize("name", LOCKS)
def test_lock_names_no_place(name: str) -> None:
    """A lock says what to install, never from where: it serves everyone's package index."""
    assert not re.findall(r"^.*(?:://|--index|--find-links|--trusted-host| @ |file:/).*$", LOCKS[name], re.MULTILINE)


@pytest.mark.parametrize("name", LOCKS)
def test_everything_locked_is_hashed(name: str) -> None:
    """Each pin carries hashes, or `--require-hashes` refuses the whole file."""
    pins = re.split(r"^(?=[a-zA-Z])", LOCKS[name], flags=re.MULTILINE)[1:]
    assert pins
    assert [pin.split()[0] for pin in pins if "--hash=sha256:" not in pin] == []


def pins_of(name: str) -> dict[str, str]:
    found = re.findall(r"^([\w.-]+)==(\S+)", LOCKS[name], re.MULTILINE)
    return {canonicalize_name(package): version for package, version in found}


@pytest.mark.parametrize("name", LOCKS)
def test_lock_satisfies_pyproject(pyproject: dict[str, Any], name: str) -> None:
    """Whatever .venv is to have stands in the lock, in a version that pyproject.toml allows."""
    project, pins = pyproject["project"], pins_of(name)
    extras = [text for extra in EXTRAS[name] for text in project["optional-dependencies"][extra]]
    wanted = [Requirement(text) for text in project["dependencies"] + extras]

    unmet = [str(item) for item in wanted if not item.specifier.contains(pins.get(canonicalize_name(item.name), "0"))]

    assert unmet == [], "run `make lock`"


def test_locks_agree() -> None:
    """Both go into one environment, so what is in both is the same."""
    one, other = map(pins_of, LOCKS)
    assert {package for package in one.keys() & other.keys() if one[package] != other[package]} == set()


def test_every_package_is_in_the_wheel(pyproject: dict[str, Any]) -> None:
    """A package that exists is part of the distribution."""
    listed = pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert sorted(listed) == [str(package.relative_to(ROOT)) for package in PACKAGES]


def test_every_package_is_typed() -> None:
    """Users' type checkers may rely on our annotations."""
    assert [package.name for package in PACKAGES if not (package / "py.typed").exists()] == []


def test_every_package_has_its_layers() -> None:
    """A package that exists is under the import contracts."""
    config = configparser.ConfigParser()
    config.read(ROOT / ".importlinter")
    assert config["importlinter"]["root_packages"].split() == [package.name for package in PACKAGES]


def test_operator_folder_is_no_package() -> None:
    """`operator/` as a package would shadow the standard library's module of that name."""
    assert not (ROOT / "operator" / "__init__.py").exists()
    assert not (ROOT / "tests" / "operator").exists()
