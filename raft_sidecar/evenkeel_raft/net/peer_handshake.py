"""Who may talk to us.

Pods are replaced and addresses are used again: whoever answers at an address need not be whom we dialled, and whoever
dials need not know who we are. So a hello names both ends, and each end checks all of it. It also says which cluster
versions the other one can work with: a store of an older release that comes into a cluster past its time is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from evenkeel.versions import FIRST, SUPPORTED
from evenkeel.wire.framing import Reason
from evenkeel_raft.net.peer_frames import VERSION, Hello, Purpose, Refused
from evenkeel_raft.shared.identity import Address, Identity

__all__ = ["greeting", "judge_answer", "judge_hello", "judge_version"]


def greeting(me: Identity, to: str, purpose: Purpose) -> Hello:
    """Return our hello."""
    return Hello(VERSION, me.cluster, me.store, me.volume, to, purpose, SUPPORTED)


def judge_hello(hello: Hello, *, me: Identity, peers: Mapping[str, Address], version: int = FIRST) -> Refused | None:
    """Return why a store that dialled us must go away; `version` is the cluster's."""
    if hello.version == VERSION and hello.purpose not in ("raft", "files"):
        return Refused(Reason.UNKNOWN_KIND, f"{me.store} has no connections for {hello.purpose!r}")
    return _judge(hello, me=me, peers=peers, version=version)


def judge_answer(
    hello: Hello, *, me: Identity, peers: Mapping[str, Address], dialled: str, version: int = FIRST
) -> Refused | None:
    """Return why we must not talk to the store that answered."""
    refusal = _judge(hello, me=me, peers=peers, version=version)
    if refusal is None and hello.store != dialled:
        return Refused(Reason.MISDIRECTED, f"{hello.store} answers at the address of {dialled}")
    return refusal


def judge_version(hello: Hello, *, version: int) -> Refused | None:
    """Return why a store has no place in a cluster of this version."""
    if hello.supported.includes(version):
        return None
    return Refused(
        Reason.VERSION,
        f"the cluster version is {version}, and {hello.store} supports {hello.supported}: run a release there that "
        "supports it",
    )


def _judge(hello: Hello, *, me: Identity, peers: Mapping[str, Address], version: int) -> Refused | None:
    if hello.version != VERSION:
        return Refused(
            Reason.VERSION,
            f"{me.store} speaks version {VERSION} of the peer protocol and {hello.store} version {hello.version}: "
            "run sidecars of releases that follow each other",
        )
    if (refusal := judge_version(hello, version=version)) is not None:
        return refusal
    if hello.cluster != me.cluster:
        return Refused(Reason.CLUSTER, f"{me.store} belongs to cluster {me.cluster}, {hello.store} to {hello.cluster}")
    if hello.to != me.store:
        return Refused(Reason.MISDIRECTED, f"this is {me.store}, not {hello.to}")
    known = peers.get(hello.store)
    if known is None:
        return Refused(Reason.UNKNOWN_PEER, f"{me.store} knows no store called {hello.store}")
    if known.volume != hello.volume:
        return Refused(
            Reason.VOLUME, f"{hello.store} has volume {hello.volume}, {me.store} knows it with {known.volume}"
        )
    return None
