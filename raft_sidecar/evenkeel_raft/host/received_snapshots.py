"""Snapshots from peers that are received and not restored yet.

A directory is renamed before it is deleted, so that a half-deleted one is never taken for a complete snapshot.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from evenkeel_raft.net.files.partial_snapshot import PARTIAL, parse_key

__all__ = ["ReceivedSnapshots", "find_received_snapshots", "remove_in_background"]

_GONE: Final = ".gone"


class ReceivedSnapshots:
    """The received snapshots of one replica, by index."""

    def __init__(self) -> None:
        self._directories: dict[int, Path] = {}

    def get(self, index: int) -> Path | None:
        """Return the directory of the snapshot at this index, if there is one."""
        return self._directories.get(index)

    def add(self, index: int, directory: Path) -> None:
        """Keep a snapshot; of two at one index keep the first, which may be in use."""
        known = self._directories.setdefault(index, directory)
        if known != directory:
            remove_in_background(directory)

    def drop(self, *, upto: int | None = None) -> None:
        """Delete all snapshots, or those up to an index."""
        for index in [index for index in self._directories if upto is None or index <= upto]:
            remove_in_background(self._directories.pop(index))


def find_received_snapshots(inbox: Path, owner_of: Callable[[int, int, int], ReceivedSnapshots | None]) -> None:
    """Find the snapshots that an earlier process received; `owner_of` returns where one belongs.

    Snapshots that belong to no replica are deleted; other files are left alone.
    """
    for path in list(inbox.iterdir()):
        key = parse_key(path.name.removesuffix(_GONE))
        if key is None or path.name.endswith(PARTIAL):
            continue
        owner = None if path.name.endswith(_GONE) else owner_of(*key)
        if owner is not None:
            owner.add(key.at, path)
        else:
            shutil.rmtree(path, ignore_errors=True)


def remove_in_background(directory: Path) -> None:
    """Delete a directory on a thread."""
    gone = directory.with_name(directory.name + _GONE)
    with suppress(OSError):
        directory = directory.rename(gone)
    asyncio.get_running_loop().run_in_executor(None, partial(shutil.rmtree, directory, ignore_errors=True))
