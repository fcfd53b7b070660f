"""Where a local cluster has its files, and how others find it while it runs.

Sockets are in a short directory of their own: the path of a unix socket has at most 107 bytes, and homes can be deep.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

import msgspec

from evenkeel.errors import InvalidInputError

__all__ = ["Layout", "Running", "StorePorts", "default_directory"]


def default_directory() -> Path:
    """Where the cluster is that is meant when none is named."""
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(os.environ.get("EVENKEEL_LOCAL", f"{base}/evenkeel/local")).expanduser()


class StorePorts(msgspec.Struct, frozen=True):
    """Where a store listens; the same after every restart, for others remember it."""

    peers: int
    http: int
    flight: int
    store_http: int


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster that runs."""

    pid: int
    etcd: str
    """The endpoint."""


class Layout:
    """The files of one local cluster."""

    def __init__(self, directory: Path) -> None:
        self.root = directory.absolute()
        self.etcd = self.root / "etcd"
        self.logs = self.root / "logs"
        self._running = self.root / "running.json"
        self._ports = self.root / "ports.json"
        digest = hashlib.blake2b(os.fsencode(self.root), digest_size=6).hexdigest()
        self.sockets = Path(tempfile.gettempdir()) / f"evenkeel-{os.getuid()}-{digest}"

    def store(self, name: str) -> Path:
        """A store's data."""
        return self.root / "stores" / name

    def socket(self, name: str) -> Path:
        """Where a store's sidecar listens for its store."""
        return self.sockets / f"{name}.sock"

    def make(self) -> None:
        """Make the directories."""
        try:
            for path in (self.root, self.logs, self.root / "stores"):
                path.mkdir(parents=True, exist_ok=True)
            self.sockets.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise InvalidInputError(f"{self.root} cannot hold a cluster: {error.strerror}; choose another") from error

    # Who runs it

    def running(self) -> Running | None:
        """The process that runs the cluster; None where there is none."""
        try:
            found = msgspec.json.decode(self._running.read_bytes(), type=Running)
        except (OSError, msgspec.MsgspecError):
            return None
        return found if _alive(found.pid) else None

    def say_running(self, running: Running) -> None:
        """Let others find the cluster."""
        _replace(self._running, msgspec.json.encode(running))

    def say_stopped(self) -> None:
        """Nobody runs it any more."""
        self._running.unlink(missing_ok=True)

    # Ports

    def ports(self) -> dict[str, StorePorts]:
        """The ports given to stores so far; `etcd` has its own file."""
        try:
            return msgspec.json.decode(self._ports.read_bytes(), type=dict[str, StorePorts])
        except FileNotFoundError:
            return {}

    def keep_ports(self, ports: dict[str, StorePorts]) -> None:
        """Remember them."""
        _replace(self._ports, msgspec.json.encode(ports))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _replace(path: Path, data: bytes) -> None:
    new = path.with_suffix(".new")
    new.write_bytes(data)
    new.rename(path)
