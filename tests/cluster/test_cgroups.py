"""A node's cgroup in both versions, each a tree of plain files here."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.cluster import cgroups


@pytest.fixture
def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cgroups, "_MOUNT", tmp_path)
    return tmp_path


def test_version_1(mount: Path) -> None:
    """Every hierarchy has the cgroup once, however many names the hierarchy has."""
    for name in ("cpu,cpuacct", "memory", "systemd"):
        (mount / name).mkdir()
    (mount / "cpu").symlink_to("cpu,cpuacct")

    cgroups.make("node")

    assert {folder.relative_to(mount).parts[0] for folder in cgroups.existing("node")} == {
        "cpu,cpuacct",
        "memory",
        "systemd",
    }
    assert all((mount / name / "node" / "system").is_dir() for name in ("cpu,cpuacct", "memory", "systemd"))


def test_version_2(mount: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only hierarchy has the cgroup, and delegates its controllers to it."""
    handed_down: list[tuple[Path, str]] = []

    def new_folder(folder: Path, *, exist_ok: bool) -> None:
        make_folder(folder, exist_ok=exist_ok)
        for name, text in (("cgroup.controllers", "cpu memory"), ("cgroup.subtree_control", "")):
            (folder / name).write_text(text)

    make_folder = Path.mkdir
    new_folder(mount, exist_ok=True)
    monkeypatch.setattr(Path, "mkdir", new_folder)

    cgroups.make("node")

    handed_down = [(folder, (folder / "cgroup.subtree_control").read_text()) for folder in (mount, mount / "node")]
    assert handed_down == [(mount, "+cpu +memory"), (mount / "node", "+cpu +memory")]
    assert (mount / "node" / "system" / "cgroup.subtree_control").read_text() == ""


def test_members(mount: Path) -> None:
    """Processes in the cgroup or below are members, once; those outside this process namespace are not."""
    (mount / "memory" / "node" / "pods").mkdir(parents=True)
    (mount / "memory" / "node" / "cgroup.procs").write_text("12\n7\n")
    (mount / "memory" / "node" / "pods" / "cgroup.procs").write_text("7\n0\n")

    assert cgroups.members("node") == [7, 12]
    assert cgroups.members("other") == []


def test_inner_ones_go_first(mount: Path) -> None:
    """A cgroup can be removed only when it has no members."""
    (mount / "memory" / "node" / "pods" / "one").mkdir(parents=True)

    cgroups.remove("node")

    assert list((mount / "memory").iterdir()) == []
