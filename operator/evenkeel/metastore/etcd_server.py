"""Run etcd servers as child processes, for local mode, demos, benchmarks and tests.

A server keeps its ports and its data directory across restarts, so that clients find it again. It ends with the process
that started it, even if that process is killed. Ports are below the kernel's ephemeral range: within it, a client that
retries a stopped server could connect to itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import msgspec
from aetcd import rpc

from evenkeel.errors import MetastoreError
from evenkeel.metastore._etcd_connection import Opener
from evenkeel.metastore.etcd_binary import EtcdBinary, find_etcd
from evenkeel.metastore.etcd_settings import EtcdSettings

__all__ = ["EtcdBinary", "EtcdCluster", "EtcdServer", "ServerTls", "die_with_parent", "find_etcd", "free_port"]

_LOOPBACK = "127.0.0.1"
_LOWEST_PORT = 15000
_POLL_SECONDS = 0.02
_LOG_LINES = 20

# PR_SET_PDEATHSIG survives exec. A wrapper, unlike a preexec_fn, runs no Python code in a fork of a process with gRPC
# threads. The check of the parent covers its death before prctl.
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent process has ended")
os.execv(sys.argv[2], sys.argv[2:])
"""


class ServerTls(msgspec.Struct, frozen=True, kw_only=True):
    """TLS files of a server and of its clients."""

    cert: Path
    key: Path
    ca: Path
    """CA of the server's certificate and, if required, of client certificates."""
    client_cert: Path | None = None
    client_key: Path | None = None
    """If both are given, clients need a certificate, and the readiness check uses this one."""

    def flags(self) -> list[str]:
        """Return the flags for etcd's command line."""
        flags = [f"--cert-file={self.cert}", f"--key-file={self.key}"]
        if self.client_cert:
            flags += [f"--trusted-ca-file={self.ca}", "--client-cert-auth"]
        return flags

    def context(self) -> ssl.SSLContext:
        """Return an SSL context for clients of the server."""
        context = ssl.create_default_context(cafile=str(self.ca))
        if self.client_cert:
            context.load_cert_chain(self.client_cert, self.client_key)
        return context


class EtcdServer:
    """One etcd member on loopback; an async context manager that starts and terminates it."""

    def __init__(
        self,
        data_dir: Path,
        *,
        binary: EtcdBinary | None = None,
        name: str = "default",
        ports: tuple[int, int] | None = None,
        tls: ServerTls | None = None,
        fsync: bool = True,
        extra_args: Sequence[str] = (),
    ) -> None:
        """Take `ports` for clients and for peers; by default free ones."""
        self.data_dir = data_dir
        self.binary = binary or find_etcd()
        self.name = name
        self.client_port, self.peer_port = ports or _free_ports(2)
        self.peers = {name: self.peer_url}
        """Peer URLs of all members of the cluster, by name."""
        self.cluster_token = secrets.token_hex(8)
        """Makes the cluster's id unique: etcd derives it from this token and the peers' addresses."""
        self._tls = tls
        self._extra_args = [*extra_args, *([] if fsync else ["--unsafe-no-fsync"])]
        self._process: asyncio.subprocess.Process | None = None
        self._log_start = 0

    @property
    def endpoint(self) -> str:
        """The server's URL for clients."""
        return f"{'https' if self._tls else 'http'}://{_LOOPBACK}:{self.client_port}"

    @property
    def peer_url(self) -> str:
        """The server's URL for other members."""
        return f"http://{_LOOPBACK}:{self.peer_port}"

    @property
    def log_path(self) -> Path:
        """The log file of all runs of the server."""
        return self.data_dir / "etcd.log"

    @property
    def pid(self) -> int | None:
        """The process id while the server runs."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if self._process is not None and running else None

    async def start(self, *, within: float = 30.0) -> None:
        """Start or restart the server on the same ports and data, and wait until it is ready."""
        await self.launch()
        await self.ready(within=within)

    async def launch(self) -> None:
        """Start the server without waiting; a member of a larger cluster is ready only with a quorum."""
        if self.pid is not None:
            raise MetastoreError(f"etcd {self.name} is already running as process {self.pid}")
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self.data_dir.chmod(0o700)
        argv = die_with_parent(self._command())
        with self.log_path.open("ab") as output:
            self._log_start = output.tell()
            self._process = await asyncio.create_subprocess_exec(
                *argv, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output, env=_environment()
            )

    async def ready(self, *, within: float = 30.0) -> None:
        """Wait until the server serves linearizable reads."""
        try:
            async with asyncio.timeout(within):
                while not await self._healthy():
                    if self.pid is None:
                        raise self._failure("ended before it was ready")
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise self._failure(f"was not ready within {within:g} s") from None

    def settings(self) -> EtcdSettings:
        """Return the settings for clients of this server."""
        tls = self._tls
        if tls is None:
            return EtcdSettings(endpoints=(self.endpoint,))
        return EtcdSettings(endpoints=(self.endpoint,), ca=tls.ca, cert=tls.client_cert, key=tls.client_key)

    async def require_password(self, password: str) -> None:
        """Enable authentication, with this password for the user `root`."""
        connection = await Opener(self.settings()).open()
        try:
            await connection.auth.UserAdd(rpc.AuthUserAddRequest(name="root", password=password))
            await connection.auth.RoleAdd(rpc.AuthRoleAddRequest(name="root"))
            await connection.auth.UserGrantRole(rpc.AuthUserGrantRoleRequest(user="root", role="root"))
            await connection.auth.AuthEnable(rpc.AuthEnableRequest())
        finally:
            await connection.close()

    async def terminate(self) -> None:
        """Stop the server with SIGTERM and wait until it has ended."""
        await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        """Kill the server with SIGKILL, like a power failure, and wait until it has ended."""
        if not self.binary.survives_kill:
            raise MetastoreError(f"this etcd must not be killed: {self.binary.warning}")
        await self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Pause the server (SIGSTOP): connections stay open, and it does not answer."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume a paused server (SIGCONT)."""
        self._signal(signal.SIGCONT)

    async def __aenter__(self) -> EtcdServer:
        await _start_or_terminate(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.terminate()

    def _command(self) -> list[str]:
        members = ",".join(f"{name}={url}" for name, url in self.peers.items())
        return [
            str(self.binary.path),
            f"--name={self.name}",
            f"--data-dir={self.data_dir / 'data'}",
            f"--listen-client-urls={self.endpoint}",
            f"--advertise-client-urls={self.endpoint}",
            f"--listen-peer-urls={self.peer_url}",
            f"--initial-advertise-peer-urls={self.peer_url}",
            f"--initial-cluster={members}",
            f"--initial-cluster-token={self.cluster_token}",
            "--log-level=warn",
            *(self._tls.flags() if self._tls else []),
            *self._extra_args,
        ]

    async def _healthy(self) -> bool:
        """Request `/readyz`, which etcd answers with 200 only after a linearizable read.

        Versions before 3.5.11 only have `/health`, which also fails while the alarm NOSPACE is raised.
        """
        status = await self._ask("/readyz")
        return b" 200 " in (await self._ask("/health") if b" 404 " in status else status)

    async def _ask(self, path: str) -> bytes:
        """Return the first line of the response; empty without a response."""
        context = self._tls.context() if self._tls else None
        try:
            async with asyncio.timeout(2):
                reader, writer = await asyncio.open_connection(_LOOPBACK, self.client_port, ssl=context)
                try:
                    writer.write(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
                    return await reader.readline()
                finally:
                    writer.close()
                    with contextlib.suppress(OSError):
                        await writer.wait_closed()
        except (OSError, TimeoutError):
            return b""

    async def _end(self, sign: signal.Signals) -> None:
        if self._process is None or self._process.returncode is not None:
            return
        self._signal(sign)
        self._signal(signal.SIGCONT)
        await self._process.wait()

    def _signal(self, sign: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(sign)

    def _failure(self, what: str) -> MetastoreError:
        return MetastoreError(
            f"etcd {self.name} ({self.binary.path}) {what}; from {self.log_path}:\n{self._log_excerpt()}"
        )

    def _log_excerpt(self) -> str:
        """Return the first and last log lines since the start: bad flags are reported first, other errors last."""
        with self.log_path.open("rb") as file:
            file.seek(self._log_start)
            lines = file.read().decode(errors="replace").splitlines()
        if len(lines) > _LOG_LINES:
            lines = [*lines[:3], "...", *lines[3 - _LOG_LINES :]]
        return "\n".join(lines)


class EtcdCluster:
    """Several members that form one cluster; an async context manager that starts and terminates them."""

    def __init__(
        self,
        data_dir: Path,
        *,
        size: int = 3,
        binary: EtcdBinary | None = None,
        fsync: bool = True,
        extra_args: Sequence[str] = (),
    ) -> None:
        binary = binary or find_etcd()
        names = [f"member-{i}" for i in range(size)]
        self.members = [
            EtcdServer(data_dir / name, binary=binary, name=name, fsync=fsync, extra_args=extra_args) for name in names
        ]
        for member in self.members:
            member.peers = {other.name: other.peer_url for other in self.members}
            member.cluster_token = self.members[0].cluster_token

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The members' URLs for clients."""
        return tuple(member.endpoint for member in self.members)

    async def start(self, *, within: float = 60.0) -> None:
        """Start all members and wait until each is ready."""
        for member in self.members:
            await member.launch()
        await asyncio.gather(*(member.ready(within=within) for member in self.members))

    async def terminate(self) -> None:
        """Stop all members with SIGTERM."""
        await asyncio.gather(*(member.terminate() for member in self.members))

    async def __aenter__(self) -> EtcdCluster:
        await _start_or_terminate(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.terminate()


async def _start_or_terminate(servers: EtcdServer | EtcdCluster) -> None:
    try:
        await servers.start()
    except BaseException:
        await servers.terminate()
        raise


def die_with_parent(command: Sequence[str]) -> list[str]:
    """Wrap `command` so that it is terminated when this process ends, even if this process is killed."""
    return [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command]


def free_port() -> int:
    """Return a free loopback port below the ephemeral range; never the same twice."""
    return _free_ports(1)[0]


_given: set[int] = set()
"""Ports that this process was given, in use or not."""


def _free_ports(count: int) -> list[int]:
    """Return distinct ports: each stays bound until all are found."""
    with contextlib.ExitStack() as probes:
        return [_take_free_port(probes.enter_context(socket.socket())) for _ in range(count)]


def _take_free_port(probe: socket.socket) -> int:
    highest = _first_outgoing_port() - 1
    for _ in range(1000):
        port = _LOWEST_PORT + secrets.randbelow(highest - _LOWEST_PORT + 1)
        if port in _given:
            continue
        with contextlib.suppress(OSError):
            probe.bind((_LOOPBACK, port))
            _given.add(port)
            return port
    raise MetastoreError(f"no free port between {_LOWEST_PORT} and {highest} on {_LOOPBACK}; stop other servers")


def _first_outgoing_port() -> int:
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        return 32768
    return first if first > _LOWEST_PORT + 1000 else 32768


def _environment() -> dict[str, str]:
    """Return the environment without ETCD_* variables, which etcd would read as flags."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
