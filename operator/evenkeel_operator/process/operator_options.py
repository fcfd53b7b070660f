"""Options of the process, from flags and environment."""

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

__all__ = ["OperatorOptions", "parse_options"]

_YES_NO: Final = ("yes", "no")
_ISSUERS: Final = ("Issuer", "ClusterIssuer")


class OperatorOptions(Struct, frozen=True, kw_only=True):
    """All options of the process."""

    term: LeaderTermSettings
    lease: str
    lease_seconds: float
    http: Endpoint
    log_level: str
    log_format: str


_FLAGS: Final = (
    Flag("kubeconfig", "path to the kubeconfig; by default the pod's service account"),
    Flag("own-namespace", "namespace of the operator itself, with its Lease and its Secret", None),
    Flag("namespaces", "namespaces to serve, separated by commas; by default all"),
    Flag("identity", "name of this replica; by default the host name", socket.gethostname()),
    Flag("lease", "name of the Lease for leader election", "evenkeel-operator"),
    Flag("lease-seconds", "seconds after which a silent leader is replaced", "15"),
    Flag("seed-secret", "Secret with the seed of certificates and access tokens; created if missing", "evenkeel-seed"),
    Flag("nodes", "read Nodes, for zones and cordons", "yes", _YES_NO),
    Flag("sweep-seconds", "interval at which all objects are listed, in case a watch has missed a change", "300"),
    Flag("http", "HOST:PORT for /healthz, /readyz, /metrics and /status", "127.0.0.1:7380"),
    *ETCD_FLAGS,
    Flag("etcd-service", "Service of an etcd for which the operator issues certificates"),
    Flag("etcd-note", "ConfigMap in which to record for etcd's members that the cluster has been formed"),
    Flag("store-image", "image of the store pods", None),
    Flag("store-command", "command of the store container", "evenkeel-store"),
    Flag("pull-policy", "image pull policy", "IfNotPresent", ("Always", "IfNotPresent", "Never")),
    Flag("pull-secrets", "image pull Secrets, separated by commas"),
    Flag("apart", "forbid two stores of a cluster on one node", "yes", _YES_NO),
    Flag("tls", "use TLS between stores and clients", "yes", _YES_NO),
    Flag("certificates", "issuer of store certificates", "operator", ("operator", "cert-manager")),
    Flag("issuer", "KIND/NAME of the cert-manager issuer; by default each StoreCluster gets its own authority"),
    Flag("store-lease-seconds", "seconds after which a silent store is deregistered", "6"),
    Flag("store-log-level", "log level of stores", "info", ("debug", "info", "warning", "error")),
    *LOG_FLAGS,
)


def parse_options(arguments: Sequence[str], environment: Mapping[str, str]) -> OperatorOptions:
    """Parse the flags, with defaults from the environment; InvalidInputError names the flag."""
    about = "Reconciles StoreClusters and Tables on Kubernetes."
    flags = Flags(_FLAGS, arguments, environment, program="evenkeel-operator", about=about)
    return OperatorOptions(
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
        raise InvalidInputError(f"--issuer {flags.text('issuer')!r}: allowed are {'/NAME and '.join(_ISSUERS)}/NAME")
    return CertManagerSettings(issuer_kind=kind, issuer=name)


def _several(flags: Flags, flag: str) -> tuple[str, ...]:
    return tuple(filter(None, flags.text(flag).split(",")))
