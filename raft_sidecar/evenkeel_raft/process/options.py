"""Flags and environment variables of the process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from evenkeel.errors import InvalidInputError
from evenkeel.metastore.etcd_settings import ETCD_FLAGS, EtcdSettings, etcd_settings
from evenkeel.protocol.keys import Keys
from evenkeel.runtime.flags import LOG_FLAGS, Endpoint, Flag, Flags
from evenkeel_raft.core.raft_types import Settings
from evenkeel_raft.host.host_settings import HostSettings
from evenkeel_raft.net.peer_tls import TlsFiles

__all__ = ["Options", "parse_options"]


class Options(Struct, frozen=True, kw_only=True):
    """All options of the process."""

    store: str
    keys: Keys
    data: Path
    socket: Path
    listen: Endpoint
    advertise: Endpoint
    flight: str
    http: Endpoint
    etcd: EtcdSettings
    tls: TlsFiles | None
    host: HostSettings
    zone: str
    node: str
    pod: str
    weight: float
    capacity: int | None
    labels: dict[str, str]
    lease_seconds: float
    step_down_when_stalled: bool
    adopt_metastore: bool
    log_level: str
    log_format: str


_EVERYWHERE: Final = ("0.0.0.0", "::", "*")  # noqa: S104 - rejected, not bound

_FLAGS: Final = (
    Flag("store", "name of this store, unique in its StoreCluster", None),
    Flag("namespace", "namespace of the StoreCluster", "default"),
    Flag("store-cluster", "name of the StoreCluster", None),
    Flag("data", "directory for the log and for snapshots", None),
    Flag("socket", "unix socket for the state machine; default: raft.sock in the data directory"),
    Flag("listen", "HOST:PORT to listen on for other stores", "0.0.0.0:7400"),
    Flag(
        "advertise",
        "HOST:PORT that other stores connect to; default: the value of --listen",
    ),
    Flag("flight", "URL of this store's state machine for clients, such as grpc://host:7410"),
    Flag("http", "HOST:PORT for /healthz, /readyz, /metrics and /status", "127.0.0.1:7480"),
    *ETCD_FLAGS,
    Flag("tls-ca", "CA certificate of all stores; if set, connections between stores require TLS"),
    Flag("tls-cert", "certificate of this store"),
    Flag("tls-key", "private key of the certificate"),
    Flag("tls-server-name", "name expected in other stores' certificates; default: their host"),
    Flag("zone", "failure domain, used to spread replicas"),
    Flag("node", "Kubernetes node, used to place executors"),
    Flag("pod", "UID of the pod; orders for another pod of the same name are ignored"),
    Flag("weight", "share of replicas relative to other stores", "1"),
    Flag("capacity", "maximum number of replicas; default: no limit"),
    Flag("labels", "labels for store selectors, such as disk=ssd,rack=4"),
    Flag("bytes-per-second", "throttle for snapshots in and out; default: no limit"),
    Flag("snapshots-at-once", "snapshots created and sent concurrently", "2"),
    Flag("tick-milliseconds", "length of a raft tick", "100"),
    Flag("election-ticks", "election timeout in ticks", "10"),
    Flag("sleep-ticks", "idle ticks after which a group sleeps and its leader stops sending heartbeats", "20"),
    Flag("keep-log-bytes", "log kept per group for members that are slightly behind", str(8 << 20)),
    Flag("keep-logs-bytes", "log kept for all groups together; above it, each group keeps its share", str(1 << 30)),
    Flag("lease-seconds", "seconds after which the registration of a silent store expires", "6"),
    Flag("step-down-when-stalled", "hand over leadership when a snapshot transfer stalls", "no", ("yes", "no")),
    Flag("adopt-metastore", "follow any etcd cluster, for this run; use only after checking it", "no", ("yes", "no")),
    *LOG_FLAGS,
)


def parse_options(arguments: Sequence[str], environment: Mapping[str, str]) -> Options:
    """Parse the flags, with the environment as fallback; raise InvalidInputError that names the wrong flag."""
    about = "Run the raft replicas of one store, next to its state machine."
    return _Reader(Flags(_FLAGS, arguments, environment, program="evenkeel-raft", about=about)).read()


class _Reader:
    """Converts flag values to options."""

    def __init__(self, flags: Flags) -> None:
        self._flags = flags

    def read(self) -> Options:
        flags = self._flags
        data, listen = Path(flags.text("data")), flags.endpoint("listen")
        return Options(
            store=flags.name("store"),
            keys=Keys(namespace=flags.name("namespace"), store_cluster=flags.name("store-cluster")),
            data=data,
            socket=flags.path("socket") or data / "raft.sock",
            listen=listen,
            advertise=self._advertise(listen),
            flight=flags.text("flight"),
            http=flags.endpoint("http"),
            etcd=etcd_settings(flags),
            tls=self._tls(),
            host=self._host(),
            zone=flags.text("zone"),
            node=flags.text("node"),
            pod=flags.text("pod"),
            weight=flags.number("weight", float, least=0.001),
            capacity=flags.number("capacity", int, least=0) if flags.text("capacity") else None,
            labels=self._labels(),
            lease_seconds=flags.number("lease-seconds", float, least=1.0),
            step_down_when_stalled=flags.text("step-down-when-stalled") == "yes",
            adopt_metastore=flags.text("adopt-metastore") == "yes",
            log_level=flags.text("log-level"),
            log_format=flags.text("log-format"),
        )

    def _labels(self) -> dict[str, str]:
        labels: dict[str, str] = {}
        for pair in filter(None, self._flags.text("labels").split(",")):
            key, equals, value = pair.partition("=")
            if not equals or not key:
                raise InvalidInputError(f"--labels {pair!r} is invalid; use key=value, separated by commas")
            labels[key] = value
        return labels

    def _advertise(self, listen: Endpoint) -> Endpoint:
        """Return the address for other stores; a wildcard address is rejected because they cannot connect to it."""
        advertise = self._flags.endpoint("advertise") if self._flags.text("advertise") else listen
        if advertise.host in _EVERYWHERE:
            given = "--advertise" if self._flags.text("advertise") else "--advertise is missing, and --listen"
            raise InvalidInputError(
                f"{given} {advertise} is a wildcard address that other stores cannot connect to; set --advertise to "
                "this host's name or address, as HOST:PORT"
            )
        return advertise

    def _tls(self) -> TlsFiles | None:
        ca, cert, key = (self._flags.path(f"tls-{what}") for what in ("ca", "cert", "key"))
        if ca is None and cert is None and key is None:
            return None
        if ca is None or cert is None or key is None:
            raise InvalidInputError("--tls-ca, --tls-cert and --tls-key must be set together; set all three or none")
        return TlsFiles(ca, cert, key, self._flags.text("tls-server-name"))

    def _host(self) -> HostSettings:
        rate = self._flags.number("bytes-per-second", float, least=1) if self._flags.text("bytes-per-second") else None
        ticks = self._flags.number("election-ticks", int, least=3)
        return HostSettings(
            tick_seconds=self._flags.number("tick-milliseconds", float, least=1) / 1000,
            raft=Settings(election_ticks=ticks, heartbeat_ticks=max(1, ticks // 3)),
            sleep_after_ticks=self._flags.number("sleep-ticks", int, least=1),
            keep_log_bytes=self._flags.number("keep-log-bytes", int, least=1),
            keep_logs_bytes=self._flags.number("keep-logs-bytes", int, least=1),
            bytes_per_second=rate,
            snapshots_at_once=self._flags.number("snapshots-at-once", int, least=1),
        )
