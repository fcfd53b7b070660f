"""Small JSON files that a host keeps on its volume beside the log.

    peers.json      addresses of the other stores
    settings.json   throttles from the StoreCluster
    version.json    the cluster version; releases that do not support it refuse the volume

A process that starts without a metastore continues with the content of these files.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec

from evenkeel.errors import MalformedRecordError
from evenkeel.runtime.directories import replace_file
from evenkeel.versions import FIRST, check_version
from evenkeel_raft.log.log_volume import close_to_first_release

__all__ = ["LOG_DIRECTORY", "CachedFile", "read_version", "write_version"]

log = logging.getLogger(__name__)

LOG_DIRECTORY: Final = "log"
_VERSION_FILE: Final = "version.json"
_T = TypeVar("_T")


class CachedFile(Generic[_T]):
    """A JSON file that caches data of the metastore.

    An unreadable file counts as missing, because the metastore has the original. A file that cannot be written, for
    example on a full disk, is logged once and written at the next change.
    """

    def __init__(self, path: Path, type_: type[_T]) -> None:
        self._path = path
        self._writable = True
        self.value: _T | None = None
        """The content of the file; None if there is no file."""
        with suppress(OSError, ValueError, RecursionError):
            self.value = msgspec.json.decode(path.read_bytes(), type=type_)

    def write(self, value: _T | None) -> None:
        """Replace the content durably; None deletes the file."""
        if value == self.value:
            return
        try:
            if value is None:
                self._path.unlink(missing_ok=True)
            else:
                replace_file(self._path, msgspec.json.encode(value))
            self.value, self._writable = value, True
        except OSError as error:
            if self._writable:
                log.warning("cannot write %s: %s; a restart would use the previous content", self._path, error)
            self._writable = False


def read_version(directory: Path) -> int:
    """Return the cluster version of a volume; UnsupportedVersionError if this release does not support it."""
    path = directory / _VERSION_FILE
    try:
        version = msgspec.json.decode(path.read_bytes(), type=dict[str, int])["version"]
    except (FileNotFoundError, NotADirectoryError):
        return FIRST
    except (OSError, ValueError, RecursionError, KeyError) as error:
        raise MalformedRecordError(
            f"cannot read a cluster version from {path}: {error}; delete the file if this release has run on this "
            "volume before"
        ) from error
    check_version(version, of=f"the volume in {directory}")
    return version


def write_version(directory: Path, version: int, *, volume: str) -> bool:
    """Write the cluster version durably, before anything that older releases cannot read; return whether it worked."""
    try:
        if version > FIRST:
            close_to_first_release(directory / LOG_DIRECTORY, volume)
        replace_file(directory / _VERSION_FILE, msgspec.json.encode({"version": version}))
    except OSError as error:
        log.warning("cannot write cluster version %d to the volume: %s", version, error)
        return False
    return True
