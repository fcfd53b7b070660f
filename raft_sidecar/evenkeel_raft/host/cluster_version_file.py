"""The cluster version that a volume has seen, in a file: releases that do not support it refuse the volume."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import msgspec

from evenkeel.errors import MalformedRecordError
from evenkeel.runtime.directories import replace_file
from evenkeel.versions import FIRST, check_version
from evenkeel_raft.log.log_volume import close_to_first_release

__all__ = ["note_version", "read_version"]

log = logging.getLogger(__name__)

_VERSION_FILE: Final = "version.json"


def read_version(directory: Path) -> int:
    """Return the cluster version; UnsupportedVersionError if this release does not support it."""
    path = directory / _VERSION_FILE
    try:
        version = msgspec.json.decode(path.read_bytes(), type=dict[str, int])["version"]
    except (FileNotFoundError, NotADirectoryError):
        return FIRST
    except (OSError, ValueError, RecursionError, KeyError) as error:
        raise MalformedRecordError(
            f"{path} does not name a cluster version: {error}; delete it if this release has run here before"
        ) from error
    check_version(version, of=f"the volume in {directory}")
    return version


def note_version(directory: Path, version: int, *, log_directory: Path, volume: str) -> bool:
    """Note the version durably, before anything that only it can read is written; whether that was possible."""
    try:
        if version > FIRST:
            close_to_first_release(log_directory, volume)
        replace_file(directory / _VERSION_FILE, msgspec.json.encode({"version": version}))
    except OSError as error:
        log.warning("the cluster version %d cannot be noted on the volume: %s", version, error)
        return False
    return True
