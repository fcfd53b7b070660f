"""What the process is told by flags and environment."""

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
    """Everything the process is told."""

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


_EVERYWHERE: Final = ("0.0.0.0", "::", "*")  # noqa: S104 - to be refused

_FLAGS: Final = (
    Flag("store", "name of this store, unique in its StoreCluster", None),
    Flag("namespace", "namespace of the StoreCluster", "default"),
    Flag("store-cluster", "name of the StoreCluster", None),
    Flag("data", "directory for the log and for snapshots", None),
    Flag("socket", "unix socket for the state machine; by default raft.sock in the data directory"),
    Flag("listen", "HOST:PORT to listen on for other stores", "0.0.0.0:7400"),
    Flag(
        "advertise",
        "HOST:PORT by which other stores reach this one; by default what it listens on",
    ),
    Flag("flight", "URL by which clients reach this store's state machine, like grpc://host:7410"),
    Flag("http", "HOST:PORT for /healthz, /readyz, /metrics and /status", "127.0.0.1:7480"),
    *ETCD_FLAGS,
    Flag("tls-ca", "authority of all stores' certificates; with it, stores speak TLS only"),
    Flag("tls-cert", "certificate of this store"),
    Flag("tls-key", "key of that certificate"),
    Flag("tls-server-name", "name to expect in other stores' certificates, where it is not their host's"),
    Flag("zone", "failure domain, for the spread of replicas"),
    Flag("node", "Kubernetes node, for the placement of executors"),
    Flag("pod", "UID of the pod, for orders that mean this pod alone"),
    Flag("weight", "share of replicas compared with other stores", "1"),
    Flag("capacity", "most replicas to hold; by default there is no limit"),
    Flag("labels", "labels for store selectors, like disk=ssd,rack=4"),
    Flag("bytes-per-second", "limit for snapshots in and out; by default there is none"),
    Flag("snapshots-at-once", "snapshots made and sent at the same time", "2"),
    Flag("tick-milliseconds", "raft's unit of time", "100"),
    Flag("election-ticks", "ticks without a leader after which somebody stands", "10"),
    Flag("sleep-ticks", "ticks without work after which a group sleeps; its leader then sends no heartbeats", "20"),
    Flag("keep-log-bytes", "log kept per group for members that are a little behind", str(8 << 20)),
    Flag("keep-logs-bytes", "log kept of all groups together; where it is more, each keeps its share", str(1 << 30)),
    Flag("lease-seconds", "seconds after which a silent store is no longer registered", "6"),
    Flag("step-down-when-stalled", "let another store lead where one cannot fill a replica", "no", ("yes", "no")),
    Flag("adopt-metastore", "follow whatever etcd answers: once, after a person has looked", "no", ("yes", "no")),
    *LOG_FLAGS,
)


def parse_options(arguments: Sequence[str], environment: Mapping[str, str]) -> Options:
    """Read the flags, and what they leave open from the environment; InvalidInputError names the flag."""
    about = "Runs the raft replicas of one store, beside its state machine."
    return _Reader(Flags(_FLAGS, arguments, environment, program="evenkeel-raft", about=about)).read()


class _Reader:
    """Turns texts into values."""

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
                raise InvalidInputError(f"--labels {pair!r}: write it as key=value, several separated by commas")
            labels[key] = value
        return labels

    def _advertise(self, listen: Endpoint) -> Endpoint:
        """Where others find this store; every address at once is no place to be found at."""
        advertise = self._flags.endpoint("advertise") if self._flags.text("advertise") else listen
        if advertise.host in _EVERYWHERE:
            given = "--advertise" if self._flags.text("advertise") else "--advertise is missing, and --listen"
            raise InvalidInputError(
                f"{given} {advertise} is no address that other stores can reach: give this host's name or address, as "
                "HOST:PORT"
            )
        return advertise

    def _tls(self) -> TlsFiles | None:
        ca, cert, key = (self._flags.path(f"tls-{what}") for what in ("ca", "cert", "key"))
        if ca is None and cert is None and key is None:
            return None
        if ca is None or cert is None or key is None:
            raise InvalidInputError("--tls-ca, --tls-cert and --tls-key belong together: give all three or none")
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
