"""Snapshots from peers whose files are here and not restored yet.

Whoever deletes one renames it first: a directory that is half gone must not be taken for a snapshot that is whole.
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

__all__ = ["ReceivedSnapshots", "find_received_snapshots", "remove_soon"]

_GONE: Final = ".gone"


class ReceivedSnapshots:
    """Those of one replica, by index."""

    def __init__(self) -> None:
        self._directories: dict[int, Path] = {}

    def get(self, index: int) -> Path | None:
        """Return where the snapshot at this index is, if it is."""
        return self._directories.get(index)

    def add(self, index: int, directory: Path) -> None:
        """Keep a snapshot; of two at one index the first, for that one may be in use already."""
        known = self._directories.setdefault(index, directory)
        if known != directory:
            remove_soon(directory)

    def drop(self, *, upto: int | None = None) -> None:
        """Delete all, or those up to an index."""
        for index in [index for index in self._directories if upto is None or index <= upto]:
            remove_soon(self._directories.pop(index))


def find_received_snapshots(inbox: Path, of: Callable[[int, int, int], ReceivedSnapshots | None]) -> None:
    """Take up what a process before this one was left with: `of` says whose a group's and replica's snapshot is.

    Those that are nobody's are deleted; what does not have a snapshot's name is none of ours.
    """
    for path in list(inbox.iterdir()):
        key = parse_key(path.name.removesuffix(_GONE))
        if key is None or path.name.endswith(PARTIAL):
            continue
        arrivals = None if path.name.endswith(_GONE) else of(*key)
        if arrivals is not None:
            arrivals.add(key.at, path)
        else:
            shutil.rmtree(path, ignore_errors=True)


def remove_soon(directory: Path) -> None:
    """Delete a directory on a thread."""
    gone = directory.with_name(directory.name + _GONE)
    with suppress(OSError):
        directory = directory.rename(gone)
    asyncio.get_running_loop().run_in_executor(None, partial(shutil.rmtree, directory, ignore_errors=True))
