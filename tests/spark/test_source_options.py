"""Options are parsed strictly, and errors name the option."""

from __future__ import annotations

from pathlib import Path

import pytest

from evenkeel.errors import InvalidInputError
from evenkeel_spark.source_options import Connection, read_options

ENOUGH = {"table": "orders", "endpoints": "grpc://127.0.0.1:7500"}


def test_names_and_lists() -> None:
    """Names are case-insensitive, lists are separated by commas, and a path is a table."""
    found = read_options({"ENDPOINTS": " grpc://a:1, grpc+tls://b:2 ", "path": "orders", "pinseconds": "60"})
    assert found.endpoints == ("grpc://a:1", "grpc+tls://b:2")
    assert (found.table, found.pin_seconds) == ("orders", 60.0)
    assert read_options(ENOUGH | {"columns": "id, amount"}).columns == ("id", "amount")
    assert read_options(ENOUGH | {"filter": '["=", "id", 1]'}).filter == ["=", "id", 1]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tabel": "orders"}, r"option tabel: unknown; allowed: table, endpoints"),
        ({"table": ""}, "option table: is empty"),
        ({"path": "others"}, "option table: got orders, and others as path; give only one"),
        ({"endpoints": "127.0.0.1:7500"}, r"option endpoints: got '127.0.0.1:7500'; allowed: grpc://HOST:PORT"),
        ({"deadline": "soon"}, "option deadline: got 'soon'; allowed: seconds"),
        ({"pinSeconds": "0"}, "option pinSeconds: got '0'"),
        ({"pinSeconds": "86401"}, "option pinSeconds: got '86401'"),
        ({"filter": "id = 1"}, r"option filter: .*allowed: JSON like"),
        ({"filter": "{}"}, r"option filter: .*allowed: JSON like"),
    ],
)
def test_wrong_options(given: dict[str, str], words: str) -> None:
    """The error names the option and the allowed values."""
    with pytest.raises(InvalidInputError, match=words):
        read_options(ENOUGH | given)


@pytest.mark.parametrize("missing", ["table", "endpoints"])
def test_missing_options(missing: str) -> None:
    """A table and endpoints are required."""
    with pytest.raises(InvalidInputError, match=f"option {missing}: "):
        read_options({name: value for name, value in ENOUGH.items() if name != missing})


def test_secret_of_a_store_cluster(tmp_path: Path) -> None:
    """The directory of a mounted Secret is enough; other options take precedence."""
    for name, text in {"endpoints": "grpc+tls://a:1,grpc+tls://b:1", "token": "t0\n", "ca.crt": "x"}.items():
        (tmp_path / name).write_text(text)
    found = read_options({"table": "orders", "secret": str(tmp_path)}).connection()
    assert found == Connection(("grpc+tls://a:1", "grpc+tls://b:1"), "t0", str(tmp_path / "ca.crt"), "", 60.0)
    other = read_options(ENOUGH | {"secret": str(tmp_path), "token": "mine"}).connection()
    assert (other.endpoints, other.token) == (("grpc://127.0.0.1:7500",), "mine")


def test_missing_files(tmp_path: Path) -> None:
    """The error names the option and the file."""
    with pytest.raises(InvalidInputError, match=r"option tokenFile: .*nowhere: No such file"):
        read_options(ENOUGH | {"tokenFile": str(tmp_path / "nowhere")}).connection()
    with pytest.raises(InvalidInputError, match=r"option secret: .*endpoints: No such file"):
        read_options({"table": "orders", "secret": str(tmp_path)}).connection()
