"""A real API server on a real etcd, optionally with the controllers that run a cluster.

Without controllers it needs no root: tests that only use the API server start one on loopback in a few seconds, and it
ends with them. The controllers have short timeouts, so that a test sees a lost node within seconds: NotReady after 8 s,
pods evicted 3 s later, where Kubernetes' defaults are 48 s and five minutes.
"""

from __future__ import annotations

import contextlib
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec

from e2e.cluster.binaries import find
from e2e.cluster.certificates import Identity, Pki
from e2e.cluster.cluster_errors import ClusterError
from e2e.cluster.kubectl import Kubectl
from e2e.cluster.processes import Daemon, wait_until
from evenkeel.metastore.etcd_server import free_port

__all__ = ["Address", "ControlPlane", "api_server"]

_ADMIN = Identity("admin", "system:masters")
_CONTROLLERS = {
    "kube-controller-manager": Identity("system:kube-controller-manager"),
    "kube-scheduler": Identity("system:kube-scheduler"),
}
_START_SECONDS = 90.0


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Addresses of a control plane."""

    ip: str = "127.0.0.1"
    port: int
    etcd_port: int
    etcd_peer_port: int
    services: str = "10.96.0.0/16"
    """Address range of Services."""
    dns_domain: str = "cluster.local"

    @property
    def url(self) -> str:
        """URL of the API server."""
        return f"https://{self.ip}:{self.port}"

    @property
    def first_service(self) -> str:
        """The address of the Service `kubernetes`."""
        return f"{self.services.rpartition('.')[0]}.1"

    @classmethod
    def on_loopback(cls) -> Address:
        """Return loopback addresses with free ports."""
        return cls(port=free_port(), etcd_port=free_port(), etcd_peer_port=free_port())


class ControlPlane:
    """etcd, an API server and optionally the controllers, in one folder."""

    def __init__(self, folder: Path, address: Address, *, owned: bool = False) -> None:
        self.folder = folder
        self.address = address
        self.pki = Pki(folder / "pki")
        self.kubeconfig = folder / "kubeconfig"
        self._owned = owned
        self._etcd = Daemon("etcd", folder=folder)
        self._api_server = Daemon("kube-apiserver", folder=folder)
        self._controllers = {name: Daemon(name, folder=folder) for name in _CONTROLLERS}

    @property
    def kubectl(self) -> Kubectl:
        """kubectl as administrator."""
        return Kubectl(self.kubeconfig)

    def start(self, *, others: dict[str, Identity] | None = None) -> None:
        """Create keys, start etcd and the API server, and wait until it is ready."""
        names = [f"IP:{self.address.ip}", f"IP:{self.address.first_service}", "DNS:localhost"]
        names += ["DNS:kubernetes", "DNS:kubernetes.default", "DNS:kubernetes.default.svc"]
        self.pki.make(names=",".join(names), identities={"admin": _ADMIN, **_CONTROLLERS, **(others or {})})
        self.write_kubeconfig("admin", self.kubeconfig)
        self._etcd.start(self._etcd_command(), dies_with_us=self._owned)
        self.start_api_server()

    def start_api_server(self) -> None:
        """Start or restart the API server, and wait until it is ready."""
        self._api_server.start(self._api_server_command(), dies_with_us=self._owned)
        wait_until("the API server is ready", self.ready, within=_START_SECONDS, why=self._api_server.last_words)

    def start_controllers(self) -> None:
        """Start the scheduler and the controller manager, without waiting for them."""
        for name, daemon in self._controllers.items():
            self.write_kubeconfig(name, self.folder / f"{name}.kubeconfig")
            flags = self._controller_manager_flags() if name == "kube-controller-manager" else []
            own = ["--leader-elect=false", f"--bind-address={self.address.ip}", "--profiling=false"]
            kubeconfig = f"--kubeconfig={self.folder / f'{name}.kubeconfig'}"
            daemon.start([find(name), kubeconfig, *own, *flags], dies_with_us=self._owned)

    def kill_api_server(self) -> None:
        """Kill the API server."""
        self._api_server.kill()

    def kill(self) -> None:
        """Kill everything; the data is not needed any more, so the order does not matter."""
        for daemon in (*self._controllers.values(), self._api_server, self._etcd):
            daemon.kill()

    def running(self) -> dict[str, bool]:
        """Return which parts run."""
        parts = (self._etcd, self._api_server, *self._controllers.values())
        return {daemon.name: daemon.pid is not None for daemon in parts}

    def ready(self) -> bool:
        """Whether the API server is ready; ClusterError if it has exited."""
        if self._api_server.pid is None:
            raise ClusterError(f"the API server exited before it was ready. {self._api_server.last_words()}")
        context = ssl.create_default_context(cafile=str(self.pki.ca))
        try:
            with urllib.request.urlopen(f"{self.address.url}/readyz", timeout=5, context=context) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.HTTPError):
            return False

    def write_kubeconfig(self, identity: str, file: Path) -> None:
        """Write a kubeconfig for an identity."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "evenkeel-e2e",
            "clusters": [
                {"name": "evenkeel-e2e", "cluster": {"server": self.address.url, **self._authority()}},
            ],
            "users": [{"name": identity, "user": {"token": self.pki.token(identity)}}],
            "contexts": [{"name": "evenkeel-e2e", "context": {"cluster": "evenkeel-e2e", "user": identity}}],
        }
        file.touch(mode=0o600)
        file.write_bytes(msgspec.yaml.encode(config))

    def _authority(self) -> dict[str, bytes]:
        return {"certificate-authority-data": self.pki.ca.read_bytes()}

    def _etcd_command(self) -> list[str | Path]:
        client, peer = (f"http://127.0.0.1:{port}" for port in (self.address.etcd_port, self.address.etcd_peer_port))
        return [
            *(find("etcd"), "--data-dir", self.folder / "etcd", "--log-level=warn", "--unsafe-no-fsync"),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"default={peer}"),
        ]

    def _api_server_command(self) -> list[str | Path]:
        pki, address = self.pki, self.address
        # The endpoint of the Service `kubernetes` must not be a loopback address.
        alone = ["--endpoint-reconciler-type=none"] if address.ip.startswith("127.") else []
        return [
            find("kube-apiserver"),
            *alone,
            f"--etcd-servers=http://127.0.0.1:{address.etcd_port}",
            f"--bind-address={address.ip}",
            f"--advertise-address={address.ip}",
            f"--secure-port={address.port}",
            f"--service-cluster-ip-range={address.services}",
            f"--tls-cert-file={pki.serving}",
            f"--tls-private-key-file={pki.serving.with_suffix('.key')}",
            f"--client-ca-file={pki.ca}",
            f"--token-auth-file={pki.tokens}",
            "--authorization-mode=Node,RBAC",
            f"--service-account-issuer=https://kubernetes.default.svc.{address.dns_domain}",
            f"--service-account-key-file={pki.account_public_key}",
            f"--service-account-signing-key-file={pki.account_key}",
            f"--kubelet-client-certificate={pki.kubelet_client}",
            f"--kubelet-client-key={pki.kubelet_client.with_suffix('.key')}",
            # Without cluster DNS it reaches kubelets by address, and webhooks by pod addresses.
            "--kubelet-preferred-address-types=InternalIP",
            "--enable-aggregator-routing=true",
            "--allow-privileged=true",
            "--default-not-ready-toleration-seconds=3",
            "--default-unreachable-toleration-seconds=3",
            "--profiling=false",
        ]

    def _controller_manager_flags(self) -> list[str]:
        pki = self.pki
        return [
            f"--service-account-private-key-file={pki.account_key}",
            f"--root-ca-file={pki.ca}",
            f"--cluster-signing-cert-file={pki.ca}",
            f"--cluster-signing-key-file={pki.ca.with_suffix('.key')}",
            f"--flex-volume-plugin-dir={self.folder / 'volume-plugins'}",
            "--use-service-account-credentials=true",
            "--node-monitor-period=1s",
            "--node-monitor-grace-period=8s",
        ]


@contextlib.contextmanager
def api_server(folder: Path) -> Iterator[ControlPlane]:
    """An API server on loopback without controllers or nodes, for as long as the block lasts."""
    plane = ControlPlane(folder, Address.on_loopback(), owned=True)
    try:
        plane.start()
        yield plane
    finally:
        plane.kill()
