"""Unix sockets in a directory that two containers share."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path
from typing import Any, Final

from evenkeel.errors import InvalidInputError

__all__ = ["MAX_PATH_BYTES", "check_path", "clear_path", "widen"]

MAX_PATH_BYTES: Final = 107
"""What Linux leaves of `sockaddr_un.sun_path` beside its final zero."""

# Some entries of ordinary size: what the system gives by itself holds a few, and both ends wake once for each of them.
_UNREAD_BYTES: Final = 1 << 20


def widen(unix: Any) -> None:
    """Let so much be on its way through a socket, as far as the system allows it."""
    unix.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNREAD_BYTES)


def check_path(path: Path) -> None:
    """Refuse a path that no socket can be bound to."""
    length = len(os.fsencode(path))
    if length > MAX_PATH_BYTES:
        raise InvalidInputError(
            f"socket path {path} is {length} bytes long, and a unix socket's path takes at most {MAX_PATH_BYTES}: "
            "put the socket into a directory with a shorter path"
        )


def clear_path(path: Path) -> None:
    """Remove the socket a dead process left behind; refuse to take the place of anything else."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise InvalidInputError(f"{path} is in the way of the socket and is none itself: remove it, or choose another")
    if _somebody_listens(path):
        raise InvalidInputError(f"another process listens on {path}: stop it, or choose another path")
    path.unlink()


def _somebody_listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        # A full queue of connections (EAGAIN) belongs to somebody, too.
        return probe.connect_ex(os.fspath(path)) not in (errno.ECONNREFUSED, errno.ENOENT)
