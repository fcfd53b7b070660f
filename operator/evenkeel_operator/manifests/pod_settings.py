"""What the operator was told about pods, for all StoreClusters alike."""

from __future__ import annotations

import msgspec

__all__ = ["CertManagerSettings", "MetastoreAccess", "PodSettings"]


class PodSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How pods of stores are run."""

    image: str
    """Has both programs, `evenkeel-raft` and the store."""
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    store_command: tuple[str, ...] = ("evenkeel-store",)
    """The state machine; whatever speaks the sidecar's socket can stand here."""
    apart: bool = True
    """Whether no two stores of a cluster may be on one node; otherwise they only rather are not."""
    tls: bool = True
    log_level: str = "info"
    lease_seconds: float = 6.0
    """After which a silent store is no longer registered."""
    grace_seconds: int = 60
    """How long a pod may take to hand over and stop."""
    user: int = 65532


class CertManagerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where cert-manager, not the operator, makes certificates for stores."""

    issuer_kind: str = ""
    """Issuer or ClusterIssuer; an Issuer is looked for in the StoreCluster's namespace."""
    issuer: str = ""
    """Who signs; an authority of each StoreCluster's own where it is empty."""


class MetastoreAccess(msgspec.Struct, frozen=True, kw_only=True):
    """How pods reach etcd."""

    endpoints: tuple[str, ...]
    secret: str = ""
    """Secret in the pods' namespace with what etcd wants to see."""
    keys: frozenset[str] = frozenset()
    """What is in it: some of ca.crt, tls.crt, tls.key, username, password."""
    server_name: str = ""
    """The name to expect in etcd's certificates."""
