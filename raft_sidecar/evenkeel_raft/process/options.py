"""Flags and environment: every flag `--a-b` may be given as `EVENKEEL_A_B`; the flag wins."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec import Struct

from evenkeel.errors import InvalidInputError
from evenkeel.metastore.settings import EtcdSettings
from evenkeel.protocol.keys import Keys
from evenkeel_raft.core.types import Settings
from evenkeel_raft.host.settings import HostSettings
from evenkeel_raft.net.tls import TlsFiles

__all__ = ["Endpoint", "Options", "parse_options"]


class Endpoint(NamedTuple):
    """A host and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Options(Struct, frozen=True, kw_only=True):
    """Everything the process is told."""

    store: str
    keys: Keys
    data: Path
    socket: Path
    listen: Endpoint
    advertise: Endpoint
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
    adopt_metastore: bool
    log_level: str
    log_format: str


class _Flag(NamedTuple):
    name: str
    help: str
    default: str | None = ""
    """None: it has to be given."""
    choices: tuple[str, ...] = ()


_FLAGS: Final = (
    _Flag("store", "name of this store, unique in its StoreCluster", None),
    _Flag("namespace", "namespace of the StoreCluster", "default"),
    _Flag("store-cluster", "name of the StoreCluster", None),
    _Flag("data", "directory for the log and for snapshots", None),
    _Flag("socket", "unix socket for the state machine; by default raft.sock in the data directory"),
    _Flag("listen", "HOST:PORT to listen on for other stores", "0.0.0.0:7400"),
    _Flag("advertise", "HOST:PORT by which other stores reach this one; by default what it listens on"),
    _Flag("http", "HOST:PORT for /healthz, /readyz, /metrics and /status", "127.0.0.1:7480"),
    _Flag("etcd-endpoints", "etcd's URLs, separated by commas", "http://127.0.0.1:2379"),
    _Flag("etcd-ca", "what signed etcd's certificates"),
    _Flag("etcd-cert", "certificate to show to etcd"),
    _Flag("etcd-key", "key of that certificate"),
    _Flag("etcd-server-name", "name to expect in etcd's certificates"),
    _Flag("etcd-user", "user to log in to etcd as"),
    _Flag("etcd-password-file", "file that holds the password"),
    _Flag("tls-ca", "authority of all stores' certificates; with it, stores speak TLS only"),
    _Flag("tls-cert", "certificate of this store"),
    _Flag("tls-key", "key of that certificate"),
    _Flag("tls-server-name", "name to expect in other stores' certificates, where it is not their host's"),
    _Flag("zone", "failure domain, for the spread of replicas"),
    _Flag("node", "Kubernetes node, for the placement of executors"),
    _Flag("pod", "UID of the pod, for orders that mean this pod alone"),
    _Flag("weight", "share of replicas compared with other stores", "1"),
    _Flag("capacity", "most replicas to hold; by default there is no limit"),
    _Flag("labels", "labels for store selectors, like disk=ssd,rack=4"),
    _Flag("bytes-per-second", "limit for snapshots in and out; by default there is none"),
    _Flag("tick-milliseconds", "raft's unit of time", "100"),
    _Flag("election-ticks", "ticks without a leader after which somebody stands", "10"),
    _Flag("keep-log-bytes", "log kept per group for members that are a little behind", str(8 << 20)),
    _Flag("lease-seconds", "seconds after which a silent store is no longer registered", "10"),
    _Flag("adopt-metastore", "follow whatever etcd answers: once, after a person has looked", "no", ("yes", "no")),
    _Flag("log-level", "what to log", "info", ("debug", "info", "warning", "error")),
    _Flag("log-format", "json for machines, console for people", "json", ("json", "console")),
)


def parse_options(arguments: Sequence[str], environment: Mapping[str, str]) -> Options:
    """Read the flags, and what they leave open from the environment; InvalidInputError names the flag."""
    return _Reader(vars(_parser(environment).parse_args(arguments))).read()


def _parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="evenkeel-raft",
        description="Runs the raft replicas of one store, beside its state machine.",
        epilog="Every flag --a-b may be given in the environment as EVENKEEL_A_B.",
        allow_abbrev=False,
    )
    for flag in _FLAGS:
        given = environment.get("EVENKEEL_" + flag.name.upper().replace("-", "_"))
        default = given if given is not None else flag.default
        shown = f" (default {flag.default})" if flag.default else " (required)" if flag.default is None else ""
        parser.add_argument(f"--{flag.name}", default=default, metavar="VALUE", help=flag.help + shown)
    return parser


class _Reader:
    """Turns texts into values."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = {name.replace("_", "-"): value for name, value in given.items()}

    def read(self) -> Options:
        for flag in _FLAGS:
            self._check(flag)
        data, listen = Path(self._text("data")), self._endpoint("listen")
        return Options(
            store=self._name("store"),
            keys=Keys(namespace=self._name("namespace"), store_cluster=self._name("store-cluster")),
            data=data,
            socket=self._path("socket") or data / "raft.sock",
            listen=listen,
            advertise=self._endpoint("advertise") if self._text("advertise") else listen,
            http=self._endpoint("http"),
            etcd=self._etcd(),
            tls=self._tls(),
            host=self._host(),
            zone=self._text("zone"),
            node=self._text("node"),
            pod=self._text("pod"),
            weight=self._number("weight", float, least=0.001),
            capacity=self._number("capacity", int, least=0) if self._text("capacity") else None,
            labels=self._labels(),
            lease_seconds=self._number("lease-seconds", float, least=1.0),
            adopt_metastore=self._text("adopt-metastore") == "yes",
            log_level=self._text("log-level"),
            log_format=self._text("log-format"),
        )

    def _check(self, flag: _Flag) -> None:
        value = self._given[flag.name]
        if value is None:
            environment = "EVENKEEL_" + flag.name.upper().replace("-", "_")
            raise InvalidInputError(f"--{flag.name} is missing: {flag.help}; give it, or set {environment}")
        if flag.choices and value not in flag.choices:
            raise InvalidInputError(f"--{flag.name} {value!r}: allowed are {', '.join(flag.choices)}")

    def _text(self, flag: str) -> str:
        return str(self._given[flag])

    def _name(self, flag: str) -> str:
        text = self._text(flag)
        if not text or "/" in text or text != text.strip():
            raise InvalidInputError(f"--{flag} {text!r}: allowed is a name without '/' or spaces around it")
        return text

    def _path(self, flag: str) -> Path | None:
        return Path(self._text(flag)) if self._text(flag) else None

    def _endpoint(self, flag: str) -> Endpoint:
        text = self._text(flag)
        host, colon, port = text.rpartition(":")
        if not colon or not host or not port.isdecimal() or int(port) > 65535:
            raise InvalidInputError(f"--{flag} {text!r}: write it as HOST:PORT, for instance 127.0.0.1:7400")
        return Endpoint(host.removeprefix("[").removesuffix("]"), int(port))

    def _number(self, flag: str, kind: Callable[[str], Any], *, least: float) -> Any:
        text = self._text(flag)
        try:
            number = kind(text)
        except ValueError:
            number = None
        if number is None or not number >= least:
            what = "a whole number" if kind is int else "a number"
            raise InvalidInputError(f"--{flag} {text!r}: allowed is {what} of at least {least:g}")
        return number

    def _labels(self) -> dict[str, str]:
        labels: dict[str, str] = {}
        for pair in filter(None, self._text("labels").split(",")):
            key, equals, value = pair.partition("=")
            if not equals or not key:
                raise InvalidInputError(f"--labels {pair!r}: write it as key=value, several separated by commas")
            labels[key] = value
        return labels

    def _etcd(self) -> EtcdSettings:
        password_file = self._path("etcd-password-file")
        try:
            password = password_file.read_text().strip() if password_file else ""
        except OSError as error:
            raise InvalidInputError(f"--etcd-password-file {password_file}: {error.strerror}") from error
        return EtcdSettings(
            endpoints=tuple(filter(None, self._text("etcd-endpoints").split(","))),
            ca=self._path("etcd-ca"),
            cert=self._path("etcd-cert"),
            key=self._path("etcd-key"),
            server_name=self._text("etcd-server-name"),
            user=self._text("etcd-user"),
            password=password,
        )

    def _tls(self) -> TlsFiles | None:
        ca, cert, key = (self._path(f"tls-{what}") for what in ("ca", "cert", "key"))
        if ca is None and cert is None and key is None:
            return None
        if ca is None or cert is None or key is None:
            raise InvalidInputError("--tls-ca, --tls-cert and --tls-key belong together: give all three or none")
        return TlsFiles(ca, cert, key, self._text("tls-server-name"))

    def _host(self) -> HostSettings:
        rate = self._number("bytes-per-second", float, least=1) if self._text("bytes-per-second") else None
        ticks = self._number("election-ticks", int, least=3)
        return HostSettings(
            tick_seconds=self._number("tick-milliseconds", float, least=1) / 1000,
            raft=Settings(election_ticks=ticks, heartbeat_ticks=max(1, ticks // 3)),
            keep_log_bytes=self._number("keep-log-bytes", int, least=1),
            bytes_per_second=rate,
        )
