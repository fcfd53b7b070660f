"""Settings of store pods that come from the operator's flags and hold for all StoreClusters."""

from __future__ import annotations

import msgspec

__all__ = ["CertManagerSettings", "MetastoreAccess", "PodSettings"]


class PodSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How store pods run."""

    image: str
    """Image with both programs, `evenkeel-raft` and the store."""
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    store_command: tuple[str, ...] = ("evenkeel-store",)
    """Command of the state machine: any program that implements the sidecar's socket protocol."""
    apart: bool = True
    """Whether two stores of a cluster must not share a node; otherwise the scheduler only prefers that."""
    tls: bool = True
    log_level: str = "info"
    lease_seconds: float = 6.0
    """Time after which a store that does not renew its registration is deregistered."""
    grace_seconds: int = 60
    """Time that a pod may take to hand over its leaderships and stop."""
    user: int = 65532


class CertManagerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for certificates that cert-manager issues in place of the operator."""

    issuer_kind: str = ""
    """Issuer, in the StoreCluster's namespace, or ClusterIssuer."""
    issuer: str = ""
    """Name of the issuer; if empty, each StoreCluster gets its own authority."""


class MetastoreAccess(msgspec.Struct, frozen=True, kw_only=True):
    """How pods reach etcd."""

    endpoints: tuple[str, ...]
    secret: str = ""
    """Secret in the pods' namespace with the credentials for etcd."""
    keys: frozenset[str] = frozenset()
    """Keys of that Secret: some of ca.crt, tls.crt, tls.key, username, password."""
    server_name: str = ""
    """Server name to expect in etcd's certificates."""
