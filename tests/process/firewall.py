"""Network faults between stores, by firewall rules in the network namespace of the test.

All stores use one loopback interface, so rules match the port on which a store listens for its peers and the user group
of its processes. Clients and etcd are not affected.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable

from tests.process.process_cluster import StoreProcesses

__all__ = ["dropped", "heal", "lose", "mute"]


def lose(part: float, stores: Iterable[StoreProcesses]) -> None:
    """Drop a random fraction of the packets between stores."""
    random = ("-m", "statistic", "--mode", "random", "--probability", str(part))
    for store in stores:
        for side in ("--dport", "--sport"):
            _drop(side, str(store.peers), *random)


def mute(store: StoreProcesses, others: Iterable[StoreProcesses]) -> None:
    """Drop all packets that a store sends to the others, on connections of either direction; it still receives."""
    own = ("-m", "owner", "--gid-owner", str(store.group))
    _drop("--sport", str(store.peers), *own)
    for other in others:
        _drop("--dport", str(other.peers), *own)


def heal() -> None:
    """Remove all rules."""
    _iptables("-F", "OUTPUT")


def dropped() -> int:
    """Return the number of packets dropped since the last `heal`."""
    rules = _iptables("-L", "OUTPUT", "-v", "-x", "-n").splitlines()[2:]
    return sum(int(rule.split()[0]) for rule in rules)


def _drop(*which: str) -> None:
    _iptables("-A", "OUTPUT", "-p", "tcp", *which, "-j", "DROP")


def _iptables(*arguments: str) -> str:
    return subprocess.run(("iptables", "-w", *arguments), check=True, capture_output=True, text=True).stdout
