"""Names and addresses of clusters conflict neither with each other nor with the machine's."""

from __future__ import annotations

from ipaddress import IPv4Network, ip_address
from itertools import combinations

import pytest

from e2e.cluster.virtual_network import Network, _taken

NODES = tuple(f"node-{number}" for number in range(1, 201))


def test_everything_is_inside_the_block() -> None:
    """Nodes, pods, Services and the API server have addresses only of the cluster's own block."""
    network = Network("dev", 3, NODES)
    block = IPv4Network(network.block)
    ranges = [IPv4Network(network.pods(node)) for node in NODES] + [IPv4Network(network.services)]
    ranges.append(IPv4Network(f"{network.host_ip}/24", strict=False))

    assert all(one.subnet_of(block) for one in ranges)
    assert not any(one.overlaps(other) for one, other in combinations(ranges, 2))
    addresses = {network.host_ip, *map(network.node_ip, NODES)}
    assert len(addresses) == len(NODES) + 1
    assert all(ip_address(address) in ranges[-1] for address in addresses)
    assert ip_address(network.dns_ip) in IPv4Network(network.services)


def test_clusters_do_not_meet() -> None:
    """Two numbers share no address and no interface, and two names share no namespace."""
    one, other = Network("dev", 0, NODES[:3]), Network("dev-1", 1, NODES[:3])
    assert not IPv4Network(one.block).overlaps(IPv4Network(other.block))
    assert one.interface != other.interface
    names = [network.namespace(node) for network in (one, other) for node in (*network.nodes, "hub")]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("destination", "taken"),
    [
        ("10.0.0.0/8", True),
        ("10.180.0.0/24", True),
        ("10.180.255.255", True),
        ("10.181.0.0/16", False),
        ("default", False),
        ("0.0.0.0/0", False),
        ("fd00::/8", False),
    ],
)
def test_addresses_in_use(destination: str, taken: bool) -> None:
    """A block is not used if a route leads to any part of it; the default route does not count."""
    assert _taken("10.180.0.0/16", [{"dst": destination}]) == taken
