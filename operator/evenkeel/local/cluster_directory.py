"""The files, ports and lock of a local cluster.

The supervisor holds the lock, which ends with its process. `running.json` has its process id and endpoints. Sockets are
in a separate directory with a short path, because the path of a unix socket has at most 107 bytes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

import msgspec

from evenkeel.errors import InvalidInputError

__all__ = ["Layout", "Ports", "ProcessInfo", "Running", "StorePorts", "default_directory"]

_LONGEST_SOCKET: Final = 107
_LONGEST_STORE: Final = 60
"""A StoreCluster's name has at most 40 characters; a dash, a number and `.sock` follow."""
_PROBE_SECONDS: Final = 2.0
"""How long to try to take the lock; a check whether the cluster is running holds it for less."""


def default_directory() -> Path:
    """Return the default directory of the local cluster."""
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(os.environ.get("EVENKEEL_LOCAL") or f"{base}/evenkeel/local").expanduser()


class StorePorts(msgspec.Struct, frozen=True):
    """The ports of a store, which stay the same over restarts because other processes remember them."""

    peers: int
    http: int
    flight: int
    store_http: int


class Ports(msgspec.Struct):
    """All ports of a cluster."""

    etcd: tuple[int, int] | None = None
    """The client port and the peer port."""
    stores: dict[str, StorePorts] = {}


class ProcessInfo(msgspec.Struct, frozen=True):
    """A process of the cluster."""

    pid: int | None
    """None if it is not running."""
    restarts: int
    """How often it was restarted after it exited."""


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """A running cluster."""

    pid: int
    """Process id of the supervisor."""
    etcd: str
    """Endpoint of etcd."""
    processes: dict[str, ProcessInfo] = {}
    """By name, such as `main-2 store` or `etcd`."""


class Layout:
    """The files of one local cluster."""

    def __init__(self, directory: Path) -> None:
        self.root = Path(os.path.abspath(directory.expanduser()))
        self.etcd = self.root / "etcd"
        self.logs = self.root / "logs"
        self.stores = self.root / "stores"
        self.rebalancers = self.root / "rebalancers"
        self._running = self.root / "running.json"
        self._ports = self.root / "ports.json"
        self._lock = self.root / "lock"
        self.sockets = _socket_directory(self.root)

    def store(self, name: str) -> Path:
        """Return the data directory of a store."""
        return self.stores / name

    def socket(self, name: str) -> Path:
        """Return the socket between a store and its sidecar."""
        return self.sockets / f"{name}.sock"

    def log(self, name: str) -> Path:
        """Return the log file of a process."""
        return self.logs / f"{name}.log"

    def make(self) -> None:
        """Create the directories; raise InvalidInputError if they exist and belong to something else."""
        try:
            self._make()
        except OSError as error:
            raise self._unusable(error) from error

    def _make(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        self._check_ours()
        self._lock.touch()
        for path in (self.logs, self.stores):
            path.mkdir(exist_ok=True)

    def _unusable(self, error: OSError) -> InvalidInputError:
        return InvalidInputError(
            f"cannot create a cluster in {self.root}: {error.strerror}; choose another directory with --dir"
        )

    @property
    def is_made(self) -> bool:
        """Whether the directory contains a cluster."""
        return self._lock.exists()

    def _check_ours(self) -> None:
        """Refuse a directory with other files: `wipe` would delete them."""
        if self.is_made:
            return
        for path in (self.etcd, self.logs, self.stores):
            if path.exists() and not (path.is_dir() and not any(path.iterdir())):
                raise InvalidInputError(
                    f"{self.root} contains {path.name}, which does not belong to a local cluster; "
                    "choose another directory with --dir"
                )

    def link_rebalancers(self, folder: Path) -> None:
        """Load user-defined rebalancers from a folder from now on."""
        self.make()
        if self.rebalancers.is_symlink():
            self.rebalancers.unlink()
        try:
            self.rebalancers.symlink_to(folder.resolve())
        except FileExistsError:
            raise InvalidInputError(
                f"--rebalancers: {self.rebalancers} is already a folder; put your modules there or remove it"
            ) from None

    def make_sockets(self) -> None:
        """Create the directory of the sockets; raise InvalidInputError unless only this user can access it."""
        try:
            self.sockets.mkdir(mode=0o700, exist_ok=True)
            found = self.sockets.lstat()
        except OSError as error:
            raise InvalidInputError(
                f"cannot create the socket directory {self.sockets}: {error.strerror}; set TMPDIR to another directory"
            ) from error
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise InvalidInputError(
                f"the socket directory {self.sockets} is accessible to other users; remove it, or set TMPDIR"
            )

    def wipe(self) -> None:
        """Remove all files of the cluster and nothing else; raise InvalidInputError while it is running."""
        if not self.is_made:
            return
        with self.held():
            self._remove()

    def _remove(self) -> None:
        for path in (self.etcd, self.logs, self.stores, self.sockets):
            shutil.rmtree(path, ignore_errors=True)
        for path in (
            self._running,
            self._ports,
            self._lock,
            *([self.rebalancers] if self.rebalancers.is_symlink() else []),
        ):
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.root.rmdir()

    # The lock and running.json

    @contextlib.contextmanager
    def held(self) -> Iterator[Running | None]:
        """Hold the lock of the cluster; raise InvalidInputError if another process holds it.

        Yields the previous supervisor if it was killed and could not remove `running.json`.
        """
        with self._take_lock():
            before = self._read_running()
            self._running.unlink(missing_ok=True)
            try:
                yield before
            finally:
                self._running.unlink(missing_ok=True)

    def _take_lock(self) -> IO[bytes]:
        """Return the locked lock file."""
        deadline = time.monotonic() + _PROBE_SECONDS
        while True:
            late = time.monotonic() > deadline
            try:
                self._make()
                file = self._lock.open("r+b")
            except OSError as error:
                # Another process that wipes the cluster may remove the directory between any two steps.
                if late or not isinstance(error, FileNotFoundError):
                    raise self._unusable(error) from error
            else:
                # A lock on a file that was removed with its directory protects nothing.
                if _locked(file.fileno(), fcntl.LOCK_EX) and _is(file, self._lock):
                    return file
                file.close()
                if late:
                    running = self._read_running()
                    who = f" as process {running.pid}" if running is not None else ""
                    raise InvalidInputError(f"the cluster in {self.root} is already running{who}")
            time.sleep(0.02)

    def is_held(self) -> bool:
        """Whether a process holds the lock: the cluster is running, starting or stopping."""
        try:
            with self._lock.open("rb") as file:
                return not _locked(file.fileno(), fcntl.LOCK_SH)
        except OSError:
            return False

    def running(self) -> Running | None:
        """Return the running cluster, or None."""
        return self._read_running() if self.is_held() else None

    def publish_running(self, running: Running) -> None:
        """Write `running.json`."""
        _replace(self._running, msgspec.json.encode(running))

    def _read_running(self) -> Running | None:
        try:
            return msgspec.json.decode(self._running.read_bytes(), type=Running)
        except (OSError, msgspec.MsgspecError):
            return None

    # Ports

    def ports(self) -> Ports:
        """Return the ports of the cluster; empty if their file is missing or unreadable."""
        try:
            return msgspec.json.decode(self._ports.read_bytes(), type=Ports)
        except (OSError, msgspec.MsgspecError):
            return Ports()

    def save_ports(self, ports: Ports) -> None:
        """Write the ports to their file."""
        _replace(self._ports, msgspec.json.encode(ports))


def _socket_directory(root: Path) -> Path:
    """Return a short path that is unique for the user and the cluster."""
    name = f"evenkeel-{os.getuid()}-{hashlib.blake2b(os.fsencode(root), digest_size=6).hexdigest()}"
    for base in (tempfile.gettempdir(), "/tmp"):  # noqa: S108 - `make_sockets` checks owner and mode
        path = Path(base) / name
        if len(os.fsencode(path)) + 1 + _LONGEST_STORE <= _LONGEST_SOCKET:
            return path
    raise InvalidInputError(f"the path {tempfile.gettempdir()} is too long for sockets; set TMPDIR to a shorter one")


def _locked(file: int, how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is(file: IO[bytes], path: Path) -> bool:
    """Whether an open file is still the file at the path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _replace(path: Path, data: bytes) -> None:
    new = path.with_suffix(".new")
    new.write_bytes(data)
    new.rename(path)
