"""What goes wrong between stores, by rules of a firewall in a network that is the test's own.

All stores are on one loopback, so they are told apart by the port that one listens on for its peers, and by the group
of users that its processes run as. Clients and etcd are not touched.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable

from tests.process.process_cluster import StoreProcesses

__all__ = ["dropped", "heal", "lose", "mute"]


def lose(part: float, stores: Iterable[StoreProcesses]) -> None:
    """Drop this part of all packets between stores, at random."""
    random = ("-m", "statistic", "--mode", "random", "--probability", str(part))
    for store in stores:
        for side in ("--dport", "--sport"):
            _drop(side, str(store.peers), *random)


def mute(store: StoreProcesses, others: Iterable[StoreProcesses]) -> None:
    """Let nothing that a store says reach the others, whoever of them dialled; it still hears them."""
    own = ("-m", "owner", "--gid-owner", str(store.group))
    _drop("--sport", str(store.peers), *own)
    for other in others:
        _drop("--dport", str(other.peers), *own)


def heal() -> None:
    """Let everything through again."""
    _iptables("-F", "OUTPUT")


def dropped() -> int:
    """How many packets did not get through since the last `heal`."""
    rules = _iptables("-L", "OUTPUT", "-v", "-x", "-n").splitlines()[2:]
    return sum(int(rule.split()[0]) for rule in rules)


def _drop(*which: str) -> None:
    _iptables("-A", "OUTPUT", "-p", "tcp", *which, "-j", "DROP")


def _iptables(*arguments: str) -> str:
    return subprocess.run(("iptables", "-w", *arguments), check=True, capture_output=True, text=True).stdout
