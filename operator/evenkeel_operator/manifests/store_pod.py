"""Pod manifest of one store: the raft sidecar and the store container.

The sidecar is a native one (an init container with `restartPolicy: Always`). It starts before the store and stops after
it, because the store hands over its leaderships through the sidecar on shutdown. Both containers mount the same volume
at the same path, because they exchange snapshots as file paths.
"""

from __future__ import annotations

from typing import Any, Final

from evenkeel.model.storecluster import ContainerResources, StoreCluster
from evenkeel_operator.manifests.object_names import (
    FLIGHT_PORT,
    PEERS_PORT,
    RAFT_HTTP_PORT,
    STORE_HTTP_PORT,
    account_name,
    client_secret,
    host_of,
    selector_of,
    tls_secret,
)
from evenkeel_operator.manifests.pod_settings import MetastoreAccess, PodSettings

__all__ = ["CLAIM", "pod_spec"]

CLAIM: Final = "data"
"""Name of the volume claim template; the claim of a store is `data-<store>`."""

_DATA: Final = "/var/lib/evenkeel"
_SOCKETS: Final = "/run/evenkeel"
_TLS: Final = "/etc/evenkeel/tls"
_METASTORE: Final = "/etc/evenkeel/metastore"
_CLIENT: Final = "/etc/evenkeel/client"
_HANDOVER_SECONDS: Final = 15
_DATABASE_SHARE: Final = 0.6
"""Share of the memory limit; the rest is for Python, Arrow and requests in flight."""
_LOGS_SHARE: Final = 0.25
"""Share of the memory limit; small log entries take several times their size in memory."""

Container = dict[str, Any]


def pod_spec(cluster: StoreCluster, settings: PodSettings, metastore: MetastoreAccess) -> dict[str, Any]:
    """Return the spec of a store's pod."""
    return {
        "serviceAccountName": account_name(cluster),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": settings.grace_seconds,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": settings.user,
            "runAsGroup": settings.user,
            "fsGroup": settings.user,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **({"imagePullSecrets": [{"name": name} for name in settings.pull_secrets]} if settings.pull_secrets else {}),
        "initContainers": [_raft(cluster, settings, metastore)],
        "containers": [_store(cluster, settings, metastore)],
        "volumes": _volumes(cluster, settings, metastore),
        **_placement(cluster, settings),
    }


def _raft(cluster: StoreCluster, settings: PodSettings, metastore: MetastoreAccess) -> Container:
    scheme = "grpc+tls" if settings.tls else "grpc"
    host = host_of(cluster, "$(POD_NAME)")
    arguments = [
        *_common(cluster, settings, metastore, data="raft"),
        f"--listen=0.0.0.0:{PEERS_PORT}",
        f"--advertise={host}:{PEERS_PORT}",
        f"--flight={scheme}://{host}:{FLIGHT_PORT}",
        f"--http=0.0.0.0:{RAFT_HTTP_PORT}",
        "--node=$(NODE_NAME)",
        "--pod=$(POD_UID)",
        f"--lease-seconds={settings.lease_seconds:g}",
        *((f"--tls-ca={_TLS}/ca.crt", *_certificate()) if settings.tls else ()),
        *_share_of_memory("--keep-logs-bytes", _LOGS_SHARE, cluster.spec.resources.raft),
    ]
    return {
        **_container(
            "raft",
            ["evenkeel-raft"],
            arguments,
            settings=settings,
            environment=_environment(metastore),
            resources=cluster.spec.resources.raft,
        ),
        "restartPolicy": "Always",
        "ports": [_port("peers", PEERS_PORT), _port("raft-http", RAFT_HTTP_PORT)],
        # The sidecar reads its whole log before it answers.
        "startupProbe": _probe("/healthz", RAFT_HTTP_PORT, period=1, failures=600),
        "livenessProbe": _probe("/healthz", RAFT_HTTP_PORT, period=10, failures=6),
        "readinessProbe": _probe("/readyz", RAFT_HTTP_PORT, period=2, failures=3),
        "volumeMounts": _mounts(settings, metastore),
    }


def _store(cluster: StoreCluster, settings: PodSettings, metastore: MetastoreAccess) -> Container:
    arguments = [
        *settings.store_command[1:],
        *_common(cluster, settings, metastore, data="store"),
        f"--listen=0.0.0.0:{FLIGHT_PORT}",
        f"--http=0.0.0.0:{STORE_HTTP_PORT}",
        f"--token-file={_CLIENT}/token",
        *((f"--tls-ca={_TLS}/ca.crt", *_certificate()) if settings.tls else ()),
        *(("--heal=no",) if cluster.spec.healing == "Manual" else ()),
        *_share_of_memory("--memory", _DATABASE_SHARE, cluster.spec.resources.store),
        f"--drain-seconds={_HANDOVER_SECONDS}",
    ]
    return {
        **_container(
            "store",
            list(settings.store_command[:1]),
            arguments,
            settings=settings,
            environment=_environment(metastore),
            resources=cluster.spec.resources.store,
        ),
        "ports": [_port("flight", FLIGHT_PORT), _port("store-http", STORE_HTTP_PORT)],
        "startupProbe": _probe("/healthz", STORE_HTTP_PORT, period=1, failures=600),
        "livenessProbe": _probe("/healthz", STORE_HTTP_PORT, period=10, failures=6),
        "readinessProbe": _probe("/readyz", STORE_HTTP_PORT, period=2, failures=3),
        "volumeMounts": [
            *_mounts(settings, metastore),
            {"name": "client", "mountPath": _CLIENT, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - a volume of this pod
        ],
    }


def _common(cluster: StoreCluster, settings: PodSettings, metastore: MetastoreAccess, *, data: str) -> list[str]:
    files = (("ca.crt", "ca"), ("tls.crt", "cert"), ("tls.key", "key"), ("password", "password-file"))
    return [
        "--store=$(POD_NAME)",
        f"--namespace={cluster.metadata.namespace}",
        f"--store-cluster={cluster.metadata.name}",
        f"--data={_DATA}/{data}",
        f"--socket={_SOCKETS}/raft.sock",
        f"--etcd-endpoints={','.join(metastore.endpoints)}",
        *(f"--etcd-{flag}={_METASTORE}/{key}" for key, flag in files if key in metastore.keys),
        *((f"--etcd-server-name={metastore.server_name}",) if metastore.server_name else ()),
        f"--log-level={settings.log_level}",
    ]


def _certificate() -> tuple[str, str]:
    return f"--tls-cert={_TLS}/tls.crt", f"--tls-key={_TLS}/tls.key"


def _share_of_memory(flag: str, share: float, resources: ContainerResources) -> list[str]:
    """Size a process by the memory limit of its container, not by the memory of the node."""
    memory = resources.limits.get("memory")
    return [f"{flag}={int(memory.units * share)}"] if memory is not None else []


def _environment(metastore: MetastoreAccess) -> list[dict[str, Any]]:
    fields = {"POD_NAME": "metadata.name", "POD_UID": "metadata.uid", "NODE_NAME": "spec.nodeName"}
    found: list[dict[str, Any]] = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()
    ]
    if "username" in metastore.keys:
        user = {"name": metastore.secret, "key": "username"}
        found.append({"name": "EVENKEEL_ETCD_USER", "valueFrom": {"secretKeyRef": user}})
    return found


def _container(
    name: str,
    command: list[str],
    arguments: list[str],
    *,
    settings: PodSettings,
    environment: list[dict[str, Any]],
    resources: ContainerResources,
) -> Container:
    written = resources.model_dump(mode="json")
    return {
        "name": name,
        "image": settings.image,
        "imagePullPolicy": settings.pull_policy,
        "command": command,
        "args": arguments,
        "env": environment,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "resources": {what: amounts for what, amounts in written.items() if amounts},
    }


def _port(name: str, number: int) -> dict[str, Any]:
    return {"name": name, "containerPort": number, "protocol": "TCP"}


def _probe(path: str, port: int, *, period: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": port, "scheme": "HTTP"},
        "periodSeconds": period,
        "failureThreshold": failures,
        "timeoutSeconds": 5,
    }


def _mounts(settings: PodSettings, metastore: MetastoreAccess) -> list[dict[str, Any]]:
    return [
        {"name": CLAIM, "mountPath": _DATA},
        {"name": "sockets", "mountPath": _SOCKETS},
        *([{"name": "tls", "mountPath": _TLS, "readOnly": True}] if settings.tls else []),
        *([{"name": "metastore", "mountPath": _METASTORE, "readOnly": True}] if metastore.secret else []),
    ]


def _volumes(cluster: StoreCluster, settings: PodSettings, metastore: MetastoreAccess) -> list[dict[str, Any]]:
    secrets = {"client": client_secret(cluster)}
    if settings.tls:
        secrets["tls"] = tls_secret(cluster)
    if metastore.secret:
        secrets["metastore"] = metastore.secret
    return [
        {"name": "sockets", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {}},
        *({"name": name, "secret": {"secretName": secret}} for name, secret in secrets.items()),
    ]


def _placement(cluster: StoreCluster, settings: PodSettings) -> dict[str, Any]:
    """Spread the stores over zones and nodes."""
    selector = {"matchLabels": selector_of(cluster)}

    def spread(key: str) -> dict[str, Any]:
        return {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": selector}

    placed: dict[str, Any] = {"topologySpreadConstraints": [spread(cluster.spec.topology_key)]}
    apart = {"labelSelector": selector, "topologyKey": "kubernetes.io/hostname"}
    if settings.apart:
        placed["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
    else:
        placed["topologySpreadConstraints"].append(spread("kubernetes.io/hostname"))
    return placed
