"""One cgroup per node, in every hierarchy of version 1 or in the only one of version 2.

The kubelet puts pods below it; the node's own programs are in its `system`. So every process of a node is found by its
cgroup, even if its parent is gone.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from e2e.cluster.cluster_errors import ClusterError

__all__ = ["existing", "make", "members", "remove"]

_MOUNT = Path("/sys/fs/cgroup")


def make(name: str) -> None:
    """Create the node's cgroup, with `system` in it."""
    for root in _hierarchies():
        for folder in (root / name, root / name / "system"):
            folder.mkdir(exist_ok=True)
            _pass_on(folder)


def remove(name: str, *, within: float = 10.0) -> None:
    """Remove a cgroup and its children; retry, because the kernel may lag behind the end of processes."""
    deadline = time.monotonic() + within
    while left := existing(name):
        for folder in left:
            with contextlib.suppress(OSError):
                folder.rmdir()
        if time.monotonic() > deadline:
            raise ClusterError(f"cgroup {left[-1]} cannot be removed; it still has {members(name)}")


def existing(name: str) -> list[Path]:
    """Return the folders of a cgroup, inner ones first."""
    roots = [root / name for root in _hierarchies() if (root / name).is_dir()]
    return [Path(folder) for root in roots for folder, _, _ in os.walk(root, topdown=False)]


def members(name: str) -> list[int]:
    """Return the processes in a cgroup or its children."""
    found: set[int] = set()
    for folder in existing(name):
        with contextlib.suppress(OSError):
            found |= {int(line) for line in (folder / "cgroup.procs").read_text().split()}
    return sorted(found - {0})


def _hierarchies() -> list[Path]:
    if (_MOUNT / "cgroup.controllers").exists():
        return [_MOUNT]
    # Skip links, which are aliases of a hierarchy: `cpu` of `cpu,cpuacct`.
    return sorted(folder for folder in _MOUNT.iterdir() if folder.is_dir() and not folder.is_symlink())


def _pass_on(folder: Path) -> None:
    """Copy from the parent what version 1 leaves empty in a new cpuset, and version 2 does not delegate."""
    for file in ("cpuset.cpus", "cpuset.mems"):
        if (folder / "cgroup.clone_children").exists() and (folder / file).exists():
            (folder / file).write_text((folder.parent / file).read_text())
    handed_down = folder.parent / "cgroup.subtree_control"
    if handed_down.exists():
        available = (folder.parent / "cgroup.controllers").read_text().split()
        handed_down.write_text(" ".join(f"+{controller}" for controller in available))
