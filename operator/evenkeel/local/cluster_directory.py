"""Where a local cluster has its files, and how others find it while it runs.

Who runs it holds a lock, which ends with its process however that ends; `running.json` only says where to knock.
Sockets are in a short directory of their own: the path of a unix socket has at most 107 bytes, and homes can be deep.
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
"""For longer than that nobody looks whether the cluster runs."""


def default_directory() -> Path:
    """Where the cluster is that is meant when none is named."""
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(os.environ.get("EVENKEEL_LOCAL") or f"{base}/evenkeel/local").expanduser()


class StorePorts(msgspec.Struct, frozen=True):
    """Where a store listens; the same after every restart, for others remember it."""

    peers: int
    http: int
    flight: int
    store_http: int


class Ports(msgspec.Struct):
    """All ports that a cluster has been given."""

    etcd: tuple[int, int] | None = None
    """For clients, and for peers it does not have."""
    stores: dict[str, StorePorts] = {}


class ProcessInfo(msgspec.Struct, frozen=True):
    """One process of the cluster."""

    pid: int | None
    restarts: int
    """How often it ended by itself and was started again."""


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster that runs."""

    pid: int
    etcd: str
    """The endpoint."""
    processes: dict[str, ProcessInfo] = {}
    """By name, as in `main-2 store`, or `etcd`."""


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
        """A store's data."""
        return self.stores / name

    def socket(self, name: str) -> Path:
        """Where a store's sidecar listens for its store."""
        return self.sockets / f"{name}.sock"

    def log(self, name: str) -> Path:
        """What a process said."""
        return self.logs / f"{name}.log"

    def make(self) -> None:
        """Make the directories; InvalidInputError where somebody else has some of these names already."""
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
            f"{self.root} cannot hold a cluster: {error.strerror}; name another directory with --dir"
        )

    @property
    def is_made(self) -> bool:
        """Whether a cluster was ever made here."""
        return self._lock.exists()

    def _check_ours(self) -> None:
        """What is in these directories is deleted with the cluster one day, so nothing of others may be."""
        if self.is_made:
            return
        for path in (self.etcd, self.logs, self.stores):
            if path.exists() and not (path.is_dir() and not any(path.iterdir())):
                raise InvalidInputError(
                    f"{self.root} has {path.name} already, which is no cluster's; name another directory with --dir"
                )

    def link_rebalancers(self, folder: Path) -> None:
        """Let the users' rebalancers be looked for in a folder, from now on."""
        self.make()
        if self.rebalancers.is_symlink():
            self.rebalancers.unlink()
        try:
            self.rebalancers.symlink_to(folder.resolve())
        except FileExistsError:
            raise InvalidInputError(
                f"--rebalancers: {self.rebalancers} is a folder already; put your modules there, or remove it"
            ) from None

    def make_sockets(self) -> None:
        """Make the directory of the sockets; nobody else may have made it."""
        try:
            self.sockets.mkdir(mode=0o700, exist_ok=True)
            found = self.sockets.lstat()
        except OSError as error:
            raise InvalidInputError(
                f"{self.sockets} cannot be made for sockets: {error.strerror}; set TMPDIR to another directory"
            ) from error
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise InvalidInputError(f"{self.sockets} is not a directory of yours alone; remove it, or set TMPDIR")

    def wipe(self) -> None:
        """Remove all that a cluster has written, and nothing else; InvalidInputError while somebody runs it."""
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

    # Who runs it

    @contextlib.contextmanager
    def held(self) -> Iterator[Running | None]:
        """Be the one who runs the cluster; InvalidInputError where somebody else is.

        Whoever ran it before and had no time to say that it ended is handed over.
        """
        with self._take_lock():
            before = self._read_running()
            self._running.unlink(missing_ok=True)
            try:
                yield before
            finally:
                self._running.unlink(missing_ok=True)

    def _take_lock(self) -> IO[bytes]:
        """Return the lock's file, locked."""
        until = time.monotonic() + _PROBE_SECONDS
        while True:
            late = time.monotonic() > until
            try:
                self._make()
                file = self._lock.open("r+b")
            except OSError as error:
                # Another process that wipes the cluster can remove a directory between any two steps.
                if late or not isinstance(error, FileNotFoundError):
                    raise self._unusable(error) from error
            else:
                # A lock on a file that was removed with its directory protects nothing.
                if _locked(file.fileno(), fcntl.LOCK_EX) and _is(file, self._lock):
                    return file
                file.close()
                if late:
                    running = self._read_running()
                    who = f", as process {running.pid}" if running is not None else ""
                    raise InvalidInputError(f"the cluster in {self.root} runs already{who}")
            time.sleep(0.02)

    def is_held(self) -> bool:
        """Whether somebody runs the cluster, or is about to."""
        try:
            with self._lock.open("rb") as file:
                return not _locked(file.fileno(), fcntl.LOCK_SH)
        except OSError:
            return False

    def running(self) -> Running | None:
        """The cluster, where it runs and can be reached."""
        return self._read_running() if self.is_held() else None

    def say_running(self, running: Running) -> None:
        """Let others find the cluster."""
        _replace(self._running, msgspec.json.encode(running))

    def _read_running(self) -> Running | None:
        try:
            return msgspec.json.decode(self._running.read_bytes(), type=Running)
        except (OSError, msgspec.MsgspecError):
            return None

    # Ports

    def ports(self) -> Ports:
        """The ports given so far; none where nobody can tell any more."""
        try:
            return msgspec.json.decode(self._ports.read_bytes(), type=Ports)
        except (OSError, msgspec.MsgspecError):
            return Ports()

    def keep_ports(self, ports: Ports) -> None:
        """Remember them."""
        _replace(self._ports, msgspec.json.encode(ports))


def _socket_directory(root: Path) -> Path:
    """A short path of its own for each cluster of each user."""
    name = f"evenkeel-{os.getuid()}-{hashlib.blake2b(os.fsencode(root), digest_size=6).hexdigest()}"
    for base in (tempfile.gettempdir(), "/tmp"):  # noqa: S108 - made for its owner alone, and checked to be
        path = Path(base) / name
        if len(os.fsencode(path)) + 1 + _LONGEST_STORE <= _LONGEST_SOCKET:
            return path
    raise InvalidInputError(f"{tempfile.gettempdir()} is too long a path for sockets; set TMPDIR to a shorter one")


def _locked(file: int, how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is(file: IO[bytes], path: Path) -> bool:
    """Whether an open file is the one that the path names."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _replace(path: Path, data: bytes) -> None:
    new = path.with_suffix(".new")
    new.write_bytes(data)
    new.rename(path)
