"""Decides whether two stores may talk to each other.

Pods are replaced and addresses are reused, so the store at an address may be another one than expected. A hello
therefore names both ends, and each end checks all of it. The hello also lists the cluster versions that the sender
supports: a release that does not support the current cluster version is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from evenkeel.versions import FIRST, SUPPORTED
from evenkeel.wire.framing import Reason
from evenkeel_raft.net.peer_frames import VERSION, Hello, Purpose, Refused
from evenkeel_raft.shared.identity import Address, Identity

__all__ = ["check_answer", "check_cluster_version", "check_hello", "make_hello"]


def make_hello(me: Identity, to: str, purpose: Purpose) -> Hello:
    """Return the hello for a peer."""
    return Hello(VERSION, me.cluster, me.store, me.volume, to, purpose, SUPPORTED)


def check_hello(hello: Hello, *, me: Identity, peers: Mapping[str, Address], version: int = FIRST) -> Refused | None:
    """Return why a store that dialled us is refused, or None; `version` is the cluster version."""
    if hello.version == VERSION and hello.purpose not in ("raft", "files"):
        return Refused(Reason.UNKNOWN_KIND, f"{me.store} does not support connections for {hello.purpose!r}")
    return _check(hello, me=me, peers=peers, version=version)


def check_answer(
    hello: Hello, *, me: Identity, peers: Mapping[str, Address], dialled: str, version: int = FIRST
) -> Refused | None:
    """Return why the store that answered is refused, or None."""
    refusal = _check(hello, me=me, peers=peers, version=version)
    if refusal is None and hello.store != dialled:
        return Refused(Reason.MISDIRECTED, f"{hello.store} answers at the address of {dialled}")
    return refusal


def check_cluster_version(hello: Hello, *, version: int) -> Refused | None:
    """Return why a store that does not support the cluster version is refused, or None."""
    if hello.supported.includes(version):
        return None
    return Refused(
        Reason.VERSION,
        f"the cluster version is {version}, but {hello.store} supports {hello.supported}; run a release on "
        f"{hello.store} that supports version {version}",
    )


def _check(hello: Hello, *, me: Identity, peers: Mapping[str, Address], version: int) -> Refused | None:
    if hello.version != VERSION:
        return Refused(
            Reason.VERSION,
            f"{me.store} speaks peer protocol version {VERSION} and {hello.store} speaks version {hello.version}; "
            "run sidecars of consecutive releases",
        )
    if (refusal := check_cluster_version(hello, version=version)) is not None:
        return refusal
    if hello.cluster != me.cluster:
        return Refused(Reason.CLUSTER, f"{me.store} belongs to cluster {me.cluster}, {hello.store} to {hello.cluster}")
    if hello.to != me.store:
        return Refused(Reason.MISDIRECTED, f"this is {me.store}, not {hello.to}")
    known = peers.get(hello.store)
    if known is None:
        return Refused(Reason.UNKNOWN_PEER, f"{me.store} has no peer named {hello.store}")
    if known.volume != hello.volume:
        return Refused(
            Reason.VOLUME, f"{hello.store} has volume {hello.volume}, but {me.store} expects volume {known.volume}"
        )
    return None
