"""What the process is told by flags and environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from evenkeel.errors import InvalidInputError
from evenkeel.metastore.etcd_settings import ETCD_FLAGS, EtcdSettings, etcd_settings
from evenkeel.model.quantities import Quantity
from evenkeel.protocol.keys import Keys
from evenkeel.runtime.flags import LOG_FLAGS, Endpoint, Flag, Flags
from evenkeel.wire.store_socket import DEFAULT_CREDIT
from evenkeel_store.serving.flight_server import ServerTls

__all__ = ["Options", "parse_options"]


class Options(Struct, frozen=True, kw_only=True):
    """Everything the process is told."""

    store: str
    keys: Keys
    data: Path
    socket: Path
    listen: Endpoint
    http: Endpoint
    etcd: EtcdSettings
    tls: ServerTls | None
    tls_ca: Path | None
    token_file: Path | None
    memory: str
    threads: int
    reserve: int
    credit: int
    writer_seconds: float
    compare_seconds: float
    heals: bool
    drain_seconds: float
    grace_seconds: float
    log_level: str
    log_format: str


_FLAGS: Final = (
    Flag("store", "name of this store, unique in its StoreCluster", None),
    Flag("namespace", "namespace of the StoreCluster", "default"),
    Flag("store-cluster", "name of the StoreCluster", None),
    Flag("data", "directory for the tables", None),
    Flag("socket", "the sidecar's unix socket", None),
    Flag("listen", "HOST:PORT for clients, by Arrow Flight", "0.0.0.0:7410"),
    Flag("http", "HOST:PORT for /healthz, /readyz and /metrics", "127.0.0.1:7490"),
    *ETCD_FLAGS,
    Flag("tls-cert", "certificate to show to clients; with it, they speak TLS only"),
    Flag("tls-key", "key of that certificate"),
    Flag("tls-client-ca", "authority of clients' certificates; with it, they have to show one"),
    Flag("tls-ca", "authority of the other stores' certificates, whom this one asks when replicas are compared"),
    Flag("token-file", "file with the tokens that clients may use, one a line; by default no token is asked for"),
    Flag("memory", "most memory for the database, like 2Gi; by default 80% of the machine's"),
    Flag("threads", "threads of the database for one query; 0 for as many as there are cores", "1"),
    Flag("reserve", "room to leave on the disk: below it nothing is written", "256Mi"),
    Flag("credit", "bytes of entries to take from the sidecar at once", str(DEFAULT_CREDIT)),
    Flag("writer-seconds", "seconds after which a silent writer's tokens are forgotten", "86400"),
    Flag("compare-seconds", "seconds after which the replicas of a partition that has changed are compared", "3600"),
    Flag("heal", "build a replica anew, by itself, that has other rows than most", "yes", ("yes", "no")),
    Flag("drain-seconds", "seconds to wait for others to take over what is led here, before stopping", "10"),
    Flag("grace-seconds", "seconds to let reads and writes under way finish, before stopping", "5"),
    *LOG_FLAGS,
)


def parse_options(arguments: Sequence[str], environment: Mapping[str, str]) -> Options:
    """Read the flags, and what they leave open from the environment; InvalidInputError names the flag."""
    about = "Keeps the tables of one store, beside its raft sidecar, and serves them by Arrow Flight."
    flags = Flags(_FLAGS, arguments, environment, program="evenkeel-store", about=about)
    return Options(
        store=flags.name("store"),
        keys=Keys(namespace=flags.name("namespace"), store_cluster=flags.name("store-cluster")),
        data=Path(flags.text("data")),
        socket=Path(flags.text("socket")),
        listen=flags.endpoint("listen"),
        http=flags.endpoint("http"),
        etcd=etcd_settings(flags),
        tls=_tls(flags),
        tls_ca=flags.path("tls-ca"),
        token_file=flags.path("token-file"),
        memory=f"{_bytes(flags, 'memory')}B" if flags.text("memory") else "",
        threads=flags.number("threads", int, least=0),
        reserve=_bytes(flags, "reserve"),
        credit=flags.number("credit", int, least=1),
        writer_seconds=flags.number("writer-seconds", float, least=1),
        compare_seconds=flags.number("compare-seconds", float, least=1),
        heals=flags.text("heal") == "yes",
        drain_seconds=flags.number("drain-seconds", float, least=0),
        grace_seconds=flags.number("grace-seconds", float, least=0),
        log_level=flags.text("log-level"),
        log_format=flags.text("log-format"),
    )


def _bytes(flags: Flags, flag: str) -> int:
    text = flags.text(flag)
    try:
        return int(Quantity(text).units)
    except ValueError as error:
        raise InvalidInputError(f"--{flag} {text!r}: write a size like 512Mi or 2Gi") from error


def _tls(flags: Flags) -> ServerTls | None:
    cert, key, authority = (flags.path(f"tls-{what}") for what in ("cert", "key", "client-ca"))
    if cert is None and key is None and authority is None:
        return None
    if cert is None or key is None:
        raise InvalidInputError("--tls-cert and --tls-key belong together: give both or none")
    return ServerTls(cert, key, authority)
