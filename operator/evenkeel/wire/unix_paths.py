"""Paths and buffers of unix sockets in a directory that two containers share."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path
from typing import Any, Final

from evenkeel.errors import InvalidInputError

__all__ = ["MAX_PATH_BYTES", "check_socket_path", "enlarge_send_buffer", "remove_stale_socket"]

MAX_PATH_BYTES: Final = 107
"""The length of `sockaddr_un.sun_path` on Linux without its terminating zero."""

# The default holds only a few entries of ordinary size, and both ends would wake up for each of them.
_SEND_BUFFER_BYTES: Final = 1 << 20


def enlarge_send_buffer(unix: Any) -> None:
    """Enlarge the send buffer of a socket, as far as the system allows."""
    unix.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)


def check_socket_path(path: Path) -> None:
    """Reject a path that is too long for a unix socket."""
    length = len(os.fsencode(path))
    if length > MAX_PATH_BYTES:
        raise InvalidInputError(
            f"socket path {path} is {length} bytes long; a unix socket's path has at most {MAX_PATH_BYTES} bytes; put "
            "the socket into a directory with a shorter path"
        )


def remove_stale_socket(path: Path) -> None:
    """Remove the socket that a dead process left behind; reject a path that is in use or is not a socket."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise InvalidInputError(
            f"cannot create a socket at {path}: the file exists and is not a socket; remove it or choose another path"
        )
    if _is_listening(path):
        raise InvalidInputError(f"another process listens on {path}; stop it or choose another path")
    path.unlink()


def _is_listening(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        # EAGAIN means that a process listens, and that its backlog is full.
        return probe.connect_ex(os.fspath(path)) not in (errno.ECONNREFUSED, errno.ENOENT)
