"""Runs a real etcd server as a child process: for local mode, demos, benches and tests.

A server keeps its ports and its data directory over restarts, so that clients find it again. It dies with the
process that started it, even when that process is killed. Ports are taken from below the kernel's range for
outgoing connections: inside it, a client that retries a server which is down can by chance connect to itself.
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

# PR_SET_PDEATHSIG survives exec, and a wrapper needs no fork of a process that runs gRPC threads, as a
# preexec_fn would. The second look at the parent closes the gap in which it dies before the signal is armed.
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the process that wanted this one is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


class ServerTls(msgspec.Struct, frozen=True, kw_only=True):
    """Files that make a server speak TLS to its clients."""

    cert: Path
    key: Path
    ca: Path
    """What a client has to trust, and what signs the certificates of clients where these are asked for."""
    client_cert: Path | None = None
    client_key: Path | None = None
    """Given together: every client has to show a certificate, and the readiness check shows this one."""

    def flags(self) -> list[str]:
        """As etcd's command line has it."""
        flags = [f"--cert-file={self.cert}", f"--key-file={self.key}"]
        if self.client_cert:
            flags += [f"--trusted-ca-file={self.ca}", "--client-cert-auth"]
        return flags

    def context(self) -> ssl.SSLContext:
        """How to talk to such a server."""
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
        """`ports` are those for clients and for peers; free ones where they are left out."""
        self.data_dir = data_dir
        self.binary = binary or find_etcd()
        self.name = name
        self.client_port, self.peer_port = ports or _free_ports(2)
        self.peers = {name: self.peer_url}
        """All members of the cluster by name; a cluster of one unless somebody says otherwise."""
        self.cluster_token = secrets.token_hex(8)
        """Makes the cluster's identity one of its own: etcd derives it from this and the peers' addresses alone."""
        self._tls = tls
        self._extra_args = [*extra_args, *([] if fsync else ["--unsafe-no-fsync"])]
        self._process: asyncio.subprocess.Process | None = None
        self._log_start = 0

    @property
    def endpoint(self) -> str:
        """Where clients reach it."""
        return f"{'https' if self._tls else 'http'}://{_LOOPBACK}:{self.client_port}"

    @property
    def peer_url(self) -> str:
        """Where other members reach it."""
        return f"http://{_LOOPBACK}:{self.peer_port}"

    @property
    def log_path(self) -> Path:
        """What the server said, all its lives together."""
        return self.data_dir / "etcd.log"

    @property
    def pid(self) -> int | None:
        """The process while it runs."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if self._process is not None and running else None

    async def start(self, *, within: float = 30.0) -> None:
        """Start it, or start it again on the same ports and data, and wait until it answers."""
        await self.launch()
        await self.ready(within=within)

    async def launch(self) -> None:
        """Start it without waiting; a member of a larger cluster is ready only when most are up."""
        if self.pid is not None:
            raise MetastoreError(f"etcd {self.name} runs already, as process {self.pid}")
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self.data_dir.chmod(0o700)
        argv = die_with_parent(self._command())
        with self.log_path.open("ab") as output:
            self._log_start = output.tell()
            self._process = await asyncio.create_subprocess_exec(
                *argv, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output, env=_environment()
            )

    async def ready(self, *, within: float = 30.0) -> None:
        """Wait until it serves linearizable reads."""
        try:
            async with asyncio.timeout(within):
                while not await self._healthy():
                    if self.pid is None:
                        raise self._failure("ended before it was ready")
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise self._failure(f"was not ready within {within:g} s") from None

    def settings(self) -> EtcdSettings:
        """How a client of this process reaches it."""
        tls = self._tls
        if tls is None:
            return EtcdSettings(endpoints=(self.endpoint,))
        return EtcdSettings(endpoints=(self.endpoint,), ca=tls.ca, cert=tls.client_cert, key=tls.client_key)

    async def require_password(self, password: str) -> None:
        """From here on, let nobody in but `root` with this password and those whom root has made users."""
        connection = await Opener(self.settings()).open()
        try:
            await connection.auth.UserAdd(rpc.AuthUserAddRequest(name="root", password=password))
            await connection.auth.RoleAdd(rpc.AuthRoleAddRequest(name="root"))
            await connection.auth.UserGrantRole(rpc.AuthUserGrantRoleRequest(user="root", role="root"))
            await connection.auth.AuthEnable(rpc.AuthEnableRequest())
        finally:
            await connection.close()

    async def terminate(self) -> None:
        """End it in good order (SIGTERM) and wait until it is gone."""
        await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        """End it as a power cut would (SIGKILL) and wait until it is gone."""
        if not self.binary.survives_kill:
            raise MetastoreError(f"this etcd must not be killed: {self.binary.warning}")
        await self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Stop it in its tracks (SIGSTOP): connections stay open and nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on (SIGCONT)."""
        self._signal(signal.SIGCONT)

    async def __aenter__(self) -> EtcdServer:
        try:
            await self.start()
        except BaseException:
            await self.terminate()
            raise
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
        """Ask `/readyz`, which etcd answers with 200 only after a linearizable read.

        `/health`, which an etcd before 3.5.11 has instead, also fails while the alarm NOSPACE is raised.
        """
        status = await self._ask("/readyz")
        return b" 200 " in (await self._ask("/health") if b" 404 " in status else status)

    async def _ask(self, path: str) -> bytes:
        """The first line of the answer; empty where there is none."""
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
        """What was logged since the last start: bad flags show at its beginning, all else at its end."""
        with self.log_path.open("rb") as file:
            file.seek(self._log_start)
            lines = file.read().decode(errors="replace").splitlines()
        if len(lines) > _LOG_LINES:
            lines = [*lines[:3], "...", *lines[3 - _LOG_LINES :]]
        return "\n".join(lines)


class EtcdCluster:
    """Several members that form one cluster; an async context manager like a single server."""

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
        """Where clients reach its members."""
        return tuple(member.endpoint for member in self.members)

    async def start(self, *, within: float = 60.0) -> None:
        """Start all members and wait until each answers."""
        for member in self.members:
            await member.launch()
        await asyncio.gather(*(member.ready(within=within) for member in self.members))

    async def terminate(self) -> None:
        """End all members in good order."""
        await asyncio.gather(*(member.terminate() for member in self.members))

    async def __aenter__(self) -> EtcdCluster:
        try:
            await self.start()
        except BaseException:
            await self.terminate()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.terminate()


def die_with_parent(command: Sequence[str]) -> list[str]:
    """The command that runs `command` and has it killed when this process ends, however it ends."""
    return [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command]


def free_port() -> int:
    """A loopback port nobody listens on, outside the range of outgoing connections; never the same twice."""
    return _free_ports(1)[0]


_given: set[int] = set()
"""Ports that this process was given, whether or not anybody listens on them by now."""


def _free_ports(count: int) -> list[int]:
    """Different ports, as each stays taken until all are found."""
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
    raise MetastoreError(f"no free port between {_LOWEST_PORT} and {highest} on {_LOOPBACK}")


def _first_outgoing_port() -> int:
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        return 32768
    return first if first > _LOWEST_PORT + 1000 else 32768


def _environment() -> dict[str, str]:
    """Ours without ETCD_* settings, which etcd would take as flags."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
