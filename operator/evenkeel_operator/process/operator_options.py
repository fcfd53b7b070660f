"""What the process is told by flags and environment."""

from __future__ import annotations

import shlex
import socket
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from evenkeel.errors import InvalidInputError
from evenkeel.metastore.etcd_settings import ETCD_FLAGS, etcd_settings
from evenkeel.runtime.flags import LOG_FLAGS, Endpoint, Flag, Flags
from evenkeel_operator.manifests.pod_settings import CertManagerSettings, PodSettings
from evenkeel_operator.process.leader_term import LeaderTermSettings

__all__ = ["Options", "parse_options"]

_YES_NO: Final = ("yes", "no")
_ISSUERS: Final = ("Issuer", "ClusterIssuer")


class Options(Struct, frozen=True, kw_only=True):
    """Everything the process is told."""

    term: LeaderTermSettings
    lease: str
    lease_seconds: float
    http: Endpoint
    log_level: str
    log_format: str


_FLAGS: Final = (
    Flag("kubeconfig", "how to reach the API server; by default as a pod does"),
    Flag("own-namespace", "namespace of the operator itself, for its Lease and its Secret", None),
    Flag("namespaces", "namespaces to serve, separated by commas; by default all"),
    Flag("identity", "name of this replica; by default the host's", socket.gethostname()),
    Flag("lease", "name of the Lease that replicas elect their leader by", "evenkeel-operator"),
    Flag("lease-seconds", "seconds after which a silent leader is replaced", "15"),
    Flag("seed-secret", "Secret that certificates and tokens follow from; made where it is not there", "evenkeel-seed"),
    Flag("nodes", "whether Nodes may be read, for zones and cordons", "yes", _YES_NO),
    Flag("sweep-seconds", "how often everything is listed, in case a watch has missed something", "300"),
    Flag("http", "HOST:PORT for /healthz, /readyz, /metrics and /status", "127.0.0.1:7380"),
    *ETCD_FLAGS,
    Flag("etcd-service", "Service of an etcd that the operator makes certificates for"),
    Flag("etcd-note", "ConfigMap in which to note for etcd's members that it has been formed"),
    Flag("store-image", "image of stores' pods", None),
    Flag("store-command", "command of the container store", "evenkeel-store"),
    Flag("pull-policy", "when images are pulled", "IfNotPresent", ("Always", "IfNotPresent", "Never")),
    Flag("pull-secrets", "Secrets to pull images with, separated by commas"),
    Flag("apart", "whether no two stores of a cluster may share a node", "yes", _YES_NO),
    Flag("tls", "whether stores and clients speak TLS", "yes", _YES_NO),
    Flag("certificates", "who signs for stores", "operator", ("operator", "cert-manager")),
    Flag("issuer", "KIND/NAME of cert-manager's that signs; by default an authority of each StoreCluster's own"),
    Flag("store-lease-seconds", "seconds after which a silent store is no longer registered", "6"),
    Flag("store-log-level", "what stores log", "info", ("debug", "info", "warning", "error")),
    *LOG_FLAGS,
)


def parse_options(arguments: Sequence[str], environment: Mapping[str, str]) -> Options:
    """Read the flags, and what they leave open from the environment; InvalidInputError names the flag."""
    about = "Keeps StoreClusters and Tables on Kubernetes at what their users want."
    flags = Flags(_FLAGS, arguments, environment, program="evenkeel-operator", about=about)
    return Options(
        term=_term(flags),
        lease=flags.name("lease"),
        lease_seconds=flags.number("lease-seconds", float, least=2),
        http=flags.endpoint("http"),
        log_level=flags.text("log-level"),
        log_format=flags.text("log-format"),
    )


def _term(flags: Flags) -> LeaderTermSettings:
    return LeaderTermSettings(
        identity=flags.name("identity"),
        own_namespace=flags.name("own-namespace"),
        namespaces=_several(flags, "namespaces"),
        kubeconfig=flags.path("kubeconfig"),
        nodes=flags.text("nodes") == "yes",
        seed_secret=flags.name("seed-secret"),
        etcd=etcd_settings(flags),
        etcd_service=flags.text("etcd-service"),
        etcd_note=flags.text("etcd-note"),
        pods=PodSettings(
            image=flags.text("store-image"),
            pull_policy=flags.text("pull-policy"),
            pull_secrets=_several(flags, "pull-secrets"),
            store_command=tuple(shlex.split(flags.text("store-command"))),
            apart=flags.text("apart") == "yes",
            tls=flags.text("tls") == "yes",
            log_level=flags.text("store-log-level"),
            lease_seconds=flags.number("store-lease-seconds", float, least=1),
        ),
        cert_manager=_cert_manager(flags),
        folder=Path(tempfile.gettempdir()) / "evenkeel-operator",
        sweep_seconds=flags.number("sweep-seconds", float, least=1),
    )


def _cert_manager(flags: Flags) -> CertManagerSettings | None:
    if flags.text("certificates") != "cert-manager":
        return None
    kind, _, name = flags.text("issuer").partition("/")
    if flags.text("issuer") and (kind not in _ISSUERS or not name):
        raise InvalidInputError(f"--issuer {flags.text('issuer')!r}: not of the form {'/NAME or '.join(_ISSUERS)}/NAME")
    return CertManagerSettings(issuer_kind=kind, issuer=name)


def _several(flags: Flags, flag: str) -> tuple[str, ...]:
    return tuple(filter(None, flags.text(flag).split(",")))
