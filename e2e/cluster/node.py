"""A node: containerd, kubelet and kube-proxy in their own namespaces; `node.sh` is the first process."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from e2e.cluster import cgroups
from e2e.cluster.binaries import find
from e2e.cluster.certificates import Identity
from e2e.cluster.cluster_errors import ClusterError, UnavailableError
from e2e.cluster.control_plane import ControlPlane
from e2e.cluster.images import program_image
from e2e.cluster.processes import Daemon, run, wait_until
from e2e.cluster.virtual_network import Network

__all__ = ["Node", "cni_plugins"]

_SCRIPT = Path(__file__).with_name("node.sh")
_CNI_PLACES = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
_SOCKET = "run/containerd/containerd.sock"

# Without CAP_SYS_RESOURCE sandboxes start only with `restrict_oom_score_adj`.
_CONTAINERD = """
version = 2

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
restrict_oom_score_adj = true

[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "{snapshotter}"
default_runtime_name = "runc"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/opt/cni/bin"
conf_dir = "/node/cni"
"""


def cni_plugins() -> Path:
    """Return the folder of the CNI plugins on this machine."""
    for place in _CNI_PLACES:
        if (place / "bridge").exists():
            return place
    raise UnavailableError("there are no CNI plugins; install containernetworking-plugins")


class Node:
    """One node, by name; `folder` has what survives its restarts."""

    def __init__(self, name: str, *, folder: Path, network: Network) -> None:
        self.name = name
        self.root = folder / "disk"
        self._network = network
        self._cgroup = network.namespace(name)
        self._daemon = Daemon("node", folder=folder)

    @property
    def identity(self) -> Identity:
        """Identity of the kubelet."""
        return Identity(f"system:node:{self.name}", "system:nodes")

    @property
    def running(self) -> bool:
        """Whether the node runs."""
        return self._daemon.pid is not None

    def configure(self, plane: ControlPlane, *, labels: dict[str, str]) -> None:
        """Write the configuration of the node's programs."""
        folder = self.root / "node"
        (folder / "cni").mkdir(parents=True)
        (folder / "resolv.conf").touch()
        (folder / "ca.crt").write_bytes(plane.pki.ca.read_bytes())
        (folder / "labels").write_text(",".join(f"{key}={value}" for key, value in labels.items()))
        (folder / "containerd.toml").write_text(self._containerd())
        (folder / "cni" / "10-pods.conflist").write_bytes(msgspec.json.encode(self._cni()))
        (folder / "kubelet.yaml").write_bytes(msgspec.yaml.encode(self._kubelet(plane)))
        (folder / "kube-proxy.yaml").write_bytes(msgspec.yaml.encode(self._kube_proxy()))
        plane.write_kubeconfig(self.name, folder / "kubelet.kubeconfig")
        plane.write_kubeconfig("kube-proxy", folder / "kube-proxy.kubeconfig")

    def start(self) -> None:
        """Start the node, and wait until containerd answers, but not for the kubelet."""
        cgroups.make(self._cgroup)
        environment = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "KUBELET": str(find("kubelet")),
            "KUBE_PROXY": str(find("kube-proxy")),
            "CNI_PLUGINS": str(cni_plugins()),
            "NODE_IP": self._network.node_ip(self.name),
            "NODE_LABELS": (self.root / "node" / "labels").read_text(),
        }
        self._daemon.start(
            [
                *("env", "--ignore-environment", *(f"{name}={value}" for name, value in environment.items())),
                *("nsenter", f"--net=/run/netns/{self._network.namespace(self.name)}"),
                *("unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child"),
                *(_SCRIPT, self.root, self.name, self._cgroup),
            ]
        )
        wait_until(f"containerd of {self.name} is up", self._containerd_is_up, within=60, why=self._daemon.last_words)

    def kill(self) -> None:
        """Kill the node, as a power cut would; remove its mounts and its cgroup."""
        first = self._first_process()
        if first is not None:
            os.kill(first, signal.SIGKILL)
        self._daemon.stop()
        wait_until(f"all processes of {self.name} are gone", lambda: not self.processes(), within=30)
        cgroups.remove(self._cgroup)

    def remove(self) -> None:
        """Kill the node, and delete its disk."""
        self.kill()
        if self.root.exists():
            shutil.rmtree(self.root)

    def processes(self) -> list[int]:
        """Return all processes of the node, including containers."""
        return cgroups.members(self._cgroup)

    def residue(self) -> Iterable[str]:
        """Return what is left behind after the node's end."""
        yield from (f"process {pid} in cgroup {self._cgroup}" for pid in self.processes())
        yield from (f"cgroup {folder}" for folder in cgroups.existing(self._cgroup))

    def load(self, *archives: Path) -> None:
        """Load images onto the node."""
        for archive in archives:
            self._ctr("images", "import", str(archive))

    def images(self) -> list[str]:
        """Return the names of the node's images."""
        return self._ctr("images", "list", "--quiet").split()

    def _ctr(self, *arguments: str) -> str:
        return run("ctr", "--address", self._reach(_SOCKET), "--namespace=k8s.io", *arguments, within=300)

    def _reach(self, path: str) -> Path:
        """Return a path of the running node as seen from the host."""
        first = self._first_process()
        if first is None:
            raise ClusterError(f"{self.name} does not run")
        return Path("/proc", str(first), "root", path)

    def _containerd_is_up(self) -> bool:
        if not self.running:
            raise ClusterError(f"{self.name} exited while it started. {self._daemon.last_words()}")
        return self._first_process() is not None and self._reach(_SOCKET).exists()

    def _first_process(self) -> int | None:
        """Return process 1 of the node's namespace: the only child of `unshare`, which the daemon executes."""
        pid = self._daemon.pid
        if pid is None:
            return None
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(children[0]) if children else None

    def _containerd(self) -> str:
        # Overlays cannot be stacked, for example if this machine is a container.
        stacked = run("stat", "--file-system", "--format=%T", self.root).strip() == "overlayfs"
        return _CONTAINERD.format(pause=program_image("pause"), snapshotter="native" if stacked else "overlayfs")

    def _cni(self) -> dict[str, Any]:
        """Configure the pod network: no address translation, and pods may reach themselves by their Service."""
        ranges = [[{"subnet": self._network.pods(self.name)}]]
        bridge = {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "ipMasq": False,
            "hairpinMode": True,
            "ipam": {"type": "host-local", "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}]},
        }
        return {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge, {"type": "portmap"}]}

    def _kubelet(self, plane: ControlPlane) -> dict[str, Any]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": "/node/ca.crt"},
            },
            "authorization": {"mode": "Webhook"},
            "containerRuntimeEndpoint": f"unix:///{_SOCKET}",
            "clusterDNS": [self._network.dns_ip],
            "clusterDomain": plane.address.dns_domain,
            "resolvConf": "/node/resolv.conf",
            "volumePluginDir": "/var/lib/kubelet/volume-plugins",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self._cgroup}",
            "failCgroupV1": False,
            "failSwapOn": False,
            # All nodes share disk and memory: a node must not act on what other nodes use.
            "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "localStorageCapacityIsolation": False,
            # A lost node is detected within seconds.
            "nodeStatusUpdateFrequency": "2s",
            "nodeLeaseDurationSeconds": 4,
        }

    def _kube_proxy(self) -> dict[str, Any]:
        return {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": "/node/kube-proxy.kubeconfig"},
            "hostnameOverride": self.name,
            "mode": "iptables",
            "clusterCIDR": self._network.block,
            "iptables": {"minSyncPeriod": "100ms"},
            # These limits belong to the whole machine.
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        }
