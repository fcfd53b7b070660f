"""An external etcd: a pod that requires certificates and a password, with a user for Evenkeel."""

from __future__ import annotations

import secrets
from base64 import b64encode
from datetime import UTC, datetime
from typing import Any

from e2e.cluster.images import built, program_image
from e2e.cluster.kubectl import Kubectl
from evenkeel_operator.identity.authority import Authority

__all__ = ["ExternalEtcd"]

_NAME = "etcd"
_SECRET = "etcd-access"
_OWNER = {"runAsNonRoot": True, "runAsUser": 65532, "fsGroup": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
_GUARD = """
import asyncio, grpc, sys
from pathlib import Path
from aetcd import rpc

def read(name):
    return Path("/secret", name).read_bytes()

async def guard():
    credentials = grpc.ssl_channel_credentials(read("ca.crt"), read("tls.key"), read("tls.crt"))
    user, password = read("username").decode(), read("password").decode()
    async with rpc.secure_channel(sys.argv[1], credentials) as channel:
        auth = rpc.AuthStub(channel)
        await auth.RoleAdd(rpc.AuthRoleAddRequest(name="root"))
        await auth.UserAdd(rpc.AuthUserAddRequest(name="root", password=password[::-1]))
        await auth.UserGrantRole(rpc.AuthUserGrantRoleRequest(user="root", role="root"))
        await auth.RoleAdd(rpc.AuthRoleAddRequest(name=user))
        ours = rpc.Permission(permType=rpc.Permission.READWRITE, key=b"/evenkeel/", range_end=b"/evenkeel0")
        await auth.RoleGrantPermission(rpc.AuthRoleGrantPermissionRequest(name=user, perm=ours))
        await auth.UserAdd(rpc.AuthUserAddRequest(name=user, password=password))
        await auth.UserGrantRole(rpc.AuthUserGrantRoleRequest(user=user, role=user))
        await auth.AuthEnable(rpc.AuthEnableRequest())

asyncio.run(guard())
"""


class ExternalEtcd:
    """One member, in an existing namespace."""

    def __init__(self, kubectl: Kubectl, namespace: str) -> None:
        self.kubectl = kubectl
        self.namespace = namespace
        self.host = f"{_NAME}.{namespace}.svc"
        authority = Authority(secrets.token_bytes(32), "somebody else")
        now = datetime.now(UTC)
        self._server = authority.issue("server", [self.host, "localhost"], now=now)
        client = authority.issue("client", (), now=now)
        self._authority = authority.certificate
        self._access = {
            "ca.crt": self._authority,
            "tls.crt": client.certificate,
            "tls.key": client.key,
            "username": "keel",
            "password": secrets.token_hex(8),
        }

    def start(self) -> None:
        """Start etcd, and enable authentication."""
        server = {"ca.crt": self._authority, "tls.crt": self._server.certificate, "tls.key": self._server.key}
        ports = [{"name": "client", "port": 2379}]
        self.kubectl.apply(
            _secret("etcd-server", server),
            self._access_secret(),
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": _NAME},
                "spec": {"selector": {"app": _NAME}, "ports": ports},
            },
            _pod(_NAME, program_image("etcd"), self._command(), secret="etcd-server", labels={"app": _NAME}),
            namespace=self.namespace,
        )
        where = f"--namespace={self.namespace}"
        self.kubectl("wait", "--for=condition=Ready", f"pod/{_NAME}", "--timeout=90s", where, within=100)
        guard = ["python3", "-c", _GUARD, f"{self.host}:2379"]
        self.kubectl.apply(_pod("guard", built("store"), guard, secret=_SECRET), namespace=self.namespace)
        done = ("--for=jsonpath={.status.phase}=Succeeded", "pod/guard", "--timeout=90s")
        self.kubectl("wait", *done, where, within=100)

    def give_access(self, namespace: str) -> dict[str, Any]:
        """Create the Secret with its credentials; return the chart's values for it."""
        self.kubectl.apply(self._access_secret(), namespace=namespace)
        external = {
            "endpoints": [f"https://{self.host}:2379"],
            "secretName": _SECRET,
            "secretKeys": list(self._access),
        }
        return {"etcd": {"bundled": False, "external": external}}

    def _access_secret(self) -> dict[str, Any]:
        return _secret(_SECRET, self._access)

    def _command(self) -> list[str]:
        return [
            "etcd",
            "--data-dir=/tmp/data",
            "--listen-client-urls=https://0.0.0.0:2379",
            f"--advertise-client-urls=https://{self.host}:2379",
            "--listen-metrics-urls=http://0.0.0.0:2381",
            "--cert-file=/secret/tls.crt",
            "--key-file=/secret/tls.key",
            "--trusted-ca-file=/secret/ca.crt",
            "--client-cert-auth=true",
        ]


def _secret(name: str, data: dict[str, str]) -> dict[str, Any]:
    encoded = {key: b64encode(text.encode()).decode() for key, text in data.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": encoded}


def _pod(
    name: str, image: str, command: list[str], *, secret: str, labels: dict[str, str] | None = None
) -> dict[str, Any]:
    mounts = [{"name": "secret", "mountPath": "/secret"}, {"name": "tmp", "mountPath": "/tmp"}]
    probe = {"httpGet": {"path": "/health", "port": 2381}, "periodSeconds": 1}
    container = {
        "name": name,
        "image": image,
        "imagePullPolicy": "Never",
        "command": command,
        "volumeMounts": mounts,
        **({"readinessProbe": probe} if labels else {}),
    }
    spec = {
        "restartPolicy": "OnFailure",
        "terminationGracePeriodSeconds": 1,
        "securityContext": _OWNER,
        "containers": [container],
        "volumes": [{"name": "secret", "secret": {"secretName": secret}}, {"name": "tmp", "emptyDir": {}}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels or {}}, "spec": spec}
