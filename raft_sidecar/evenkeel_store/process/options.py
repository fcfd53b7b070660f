"""The options of the process, from flags and the environment."""

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
    """All options of the process."""

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
    Flag("socket", "path of the sidecar's unix socket", None),
    Flag("listen", "HOST:PORT of the Arrow Flight server", "0.0.0.0:7410"),
    Flag("http", "HOST:PORT for /healthz, /readyz and /metrics", "127.0.0.1:7490"),
    *ETCD_FLAGS,
    Flag("tls-cert", "certificate of this store; with it, clients must use TLS"),
    Flag("tls-key", "key of --tls-cert"),
    Flag("tls-client-ca", "CA of client certificates; with it, clients must present one"),
    Flag("tls-ca", "CA of the other stores' certificates, for comparing replicas"),
    Flag("token-file", "file with the access tokens of clients, one per line; by default none is required"),
    Flag("memory", "memory limit of the database, like 2Gi; by default 80% of the machine's"),
    Flag("threads", "database threads per query; 0 for one per core", "1"),
    Flag("reserve", "free disk space below which writes are refused", "256Mi"),
    Flag("credit", "bytes of entries that the sidecar may send ahead", str(DEFAULT_CREDIT)),
    Flag("writer-seconds", "seconds after which the write tokens of a silent writer expire", "86400"),
    Flag("compare-seconds", "seconds between comparisons of a changed partition's replicas", "3600"),
    Flag("heal", "rebuild a replica automatically if its rows differ from the majority", "yes", ("yes", "no")),
    Flag("drain-seconds", "seconds to wait for leaderships to be handed over before stopping", "10"),
    Flag("grace-seconds", "seconds to let requests finish before stopping", "5"),
    *LOG_FLAGS,
)


def parse_options(arguments: Sequence[str], environment: Mapping[str, str]) -> Options:
    """Read the flags, then the environment for flags that are not given; InvalidInputError names the flag."""
    about = "Store tables beside a raft sidecar and serve them over Arrow Flight."
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
        raise InvalidInputError("--tls-cert and --tls-key must be given together")
    return ServerTls(cert, key, authority)
