"""The output of `evenkeel verify`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from evenkeel.cli import verify_command
from evenkeel.cli.options import Output
from evenkeel.cli.target_cluster import LocalTarget, Target
from evenkeel.client.verification import Verified

SAME = Verified(0, 7, "10:ab", {"main-0": "10:ab", "main-1": "10:ab"})
ODD = Verified(1, 9, "10:cd", {"main-0": "10:cd", "main-1": "9:ee", "main-2": ""})


class Answering:
    """A fake client with a given result."""

    found: list[Verified]

    def __init__(self, target: Target, store_cluster: str, **options: Any) -> None:
        pass

    def __enter__(self) -> Answering:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def table(self, name: str) -> Answering:
        return self

    def verify(self) -> list[Verified]:
        return self.found


@pytest.mark.parametrize(("found", "same"), [([SAME], True), ([SAME, ODD], False)])
def test_table(found: list[Verified], same: bool, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """One line per partition with the stores that differ or did not answer, and a summary."""
    monkeypatch.setattr(Answering, "found", found, raising=False)
    monkeypatch.setattr(verify_command, "connect_client", Answering)
    assert verify_command.verify_table("orders", LocalTarget(), "main", Output.TABLE, deadline=1) is same
    shown = capsys.readouterr().out
    assert "0           7       10     2          identical\n" in shown
    assert ("differs from the leader: main-1; no answer: main-2" in shown) is not same
    assert ("table orders: all replicas are identical" in shown) is same


def test_json(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """JSON output has all fields."""
    monkeypatch.setattr(Answering, "found", [ODD], raising=False)
    monkeypatch.setattr(verify_command, "connect_client", Answering)
    verify_command.verify_table("orders", LocalTarget(), "main", Output.JSON, deadline=1)
    printed = json.loads(capsys.readouterr().out)
    assert (printed["table"], printed["same"]) == ("orders", False)
    [one] = printed["partitions"]
    assert (one["differing"], one["silent"], one["replicas"]["main-1"]) == (["main-1"], ["main-2"], "9:ee")


@pytest.mark.parametrize(
    ("replicas", "wrong"),
    [
        ({"a": "1:x", "b": "1:x", "c": "1:y"}, ["c"]),
        ({"a": "1:y", "b": "1:x", "c": "1:x"}, ["a"]),
        ({"a": "1:x", "b": "1:y"}, []),
        ({"a": "1:x", "b": "1:y", "c": ""}, []),
        ({"a": "1:x", "b": "1:x", "c": ""}, []),
        ({"a": "", "b": "", "c": "1:x"}, []),
        ({"a": "1:x", "b": "1:x", "c": "1:y", "d": "1:z"}, []),
    ],
)
def test_which_replicas_are_wrong(replicas: dict[str, str], wrong: list[str]) -> None:
    """A replica, also the leader, is wrong if more than half of all replicas agree on other rows."""
    assert Verified(0, 7, replicas["a"], replicas).wrong == wrong
