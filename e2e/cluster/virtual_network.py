"""The network of a cluster on one machine: a switch and each node have their own network namespaces.

    host  ek0 ──────┐                       10.180.0.1      where the API server listens
    hub namespace   bridge                  frames only: no address, invisible to the host's firewall
    node-1          eth0 ── cni0 ── pods    10.180.0.11     10.180.17.0/24
    node-2          eth0 ── cni0 ── pods    10.180.0.12     10.180.18.0/24

Nodes, pods and the host reach each other by these addresses. There is no other route, so a cluster never reaches the
network of the machine.

Namespaces are named after the cluster. Each cluster also has a number, which determines its /16 and the name of the
host's interface. The interface claims the number, and disappears with the hub. Nothing is ever removed by number, which
may belong to another cluster by then.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from e2e.cluster.cluster_errors import ClusterError
from e2e.cluster.processes import run, succeeds, wait_until

__all__ = ["Network", "claim"]

_FIRST_BLOCK = 180
_MOST_CLUSTERS = 16
_MOST_NODES = 200
_NAMESPACES = Path("/run/netns")


class Network(msgspec.Struct, frozen=True):
    """Names and addresses, derived from the cluster's name and number."""

    cluster: str
    number: int
    nodes: tuple[str, ...]

    @property
    def interface(self) -> str:
        """Interface of the host."""
        return f"ek{self.number}"

    @property
    def hub(self) -> str:
        """Namespace of the switch."""
        return self.namespace("hub")

    def namespace(self, node: str) -> str:
        """Return the namespace of a node, which is also the name of its cgroup."""
        return f"evenkeel-{self.cluster}-{node}"

    @property
    def block(self) -> str:
        """Address range of the cluster."""
        return f"{self._base}.0.0/16"

    @property
    def host_ip(self) -> str:
        """Address of the host, and of the API server."""
        return f"{self._base}.0.1"

    def node_ip(self, node: str) -> str:
        """Return the address of a node."""
        return f"{self._base}.0.{11 + self.nodes.index(node)}"

    def pods(self, node: str) -> str:
        """Return the address range of a node's pods."""
        return f"{self._base}.{17 + self.nodes.index(node)}.0/24"

    @property
    def services(self) -> str:
        """Address range of Services."""
        return f"{self._base}.240.0/20"

    @property
    def dns_ip(self) -> str:
        """Address of the cluster's DNS Service."""
        return f"{self._base}.240.10"

    @property
    def _base(self) -> str:
        return f"10.{_FIRST_BLOCK + self.number}"

    def take(self) -> bool:
        """Claim the number; return False if it is taken."""
        run("ip", "netns", "add", self.hub)
        if succeeds("ip", "link", "add", self.interface, "type", "veth", "peer", "name", "host", "netns", self.hub):
            return True
        self.remove()
        return False

    def make(self) -> None:
        """Create the links of the nodes."""
        _ip("link add bridge type bridge", "link set bridge up", namespace=self.hub)
        _ip("link set host master bridge up", namespace=self.hub)
        for node in self.nodes:
            self._plug_in(node)
        _ip(
            f"link set {self.interface} alias {self.hub} up",
            f"address add {self.host_ip}/24 dev {self.interface}",
            *self._routes(),
        )

    def remove(self) -> None:
        """Remove everything that exists of the network."""
        for namespace in self.namespaces():
            run("ip", "netns", "delete", namespace)
        wait_until(f"{self.interface} is gone with its hub", lambda: not self.has_interface(), within=30)

    def has_interface(self) -> bool:
        """Whether the host's interface exists and belongs to this cluster."""
        try:
            return Path(f"/sys/class/net/{self.interface}/ifalias").read_text().strip() == self.hub
        except OSError:
            return False

    def partition(self, node: str) -> None:
        """Disconnect a node."""
        _ip(f"link set {node} down", namespace=self.hub)

    def heal(self, node: str) -> None:
        """Reconnect a node."""
        _ip(f"link set {node} up", namespace=self.hub)

    def namespaces(self) -> list[str]:
        """Return the existing namespaces of this cluster."""
        names = [self.namespace(node) for node in self.nodes] + [self.hub]
        return [name for name in names if (_NAMESPACES / name).exists()]

    def _plug_in(self, node: str) -> None:
        namespace = self.namespace(node)
        run("ip", "netns", "add", namespace)
        _ip(f"link add {node} type veth peer name eth0 netns {namespace}", namespace=self.hub)
        _ip(f"link set {node} master bridge up", namespace=self.hub)
        _ip(
            "link set lo up",
            f"address add {self.node_ip(node)}/24 dev eth0",
            "link set eth0 up",
            # kube-proxy rewrites a Service's address only after the kernel has found a route to it.
            f"route add {self.services} via {self.host_ip}",
            *self._routes(besides=node),
            namespace=namespace,
        )

    def _routes(self, besides: str | None = None) -> list[str]:
        return [f"route add {self.pods(node)} via {self.node_ip(node)}" for node in self.nodes if node != besides]


def claim(cluster: str, nodes: tuple[str, ...]) -> Network:
    """Claim the first number whose interface and addresses are free."""
    if len(nodes) > _MOST_NODES:
        raise ClusterError(f"at most {_MOST_NODES} nodes have addresses")
    routes = msgspec.json.decode(run("ip", "-json", "route", "show", "table", "all"))
    for number in range(_MOST_CLUSTERS):
        network = Network(cluster, number, nodes)
        if not _taken(network.block, routes) and network.take():
            return network
    raise ClusterError(f"all {_MOST_CLUSTERS} cluster numbers are taken; see `python -m e2e.cluster status`")


def _taken(block: str, routes: Iterable[dict[str, Any]]) -> bool:
    wanted = ipaddress.ip_network(block)
    for route in routes:
        try:
            found = ipaddress.ip_network(route["dst"], strict=False)
        except ValueError:
            continue  # "default", which goes everywhere
        if found.version == 4 and found.prefixlen > 0 and wanted.overlaps(found):
            return True
    return False


def _ip(*commands: str, namespace: str | None = None) -> None:
    """Run several `ip` commands in one process, because starting it takes longer than the commands."""
    where = () if namespace is None else ("-netns", namespace)
    run("ip", *where, "-batch", "-", stdin="\n".join(commands) + "\n")
