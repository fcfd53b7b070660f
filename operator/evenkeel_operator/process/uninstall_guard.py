"""Refuses an uninstall while Tables or StoreClusters exist.

Run it as `python -m evenkeel_operator.process.uninstall_guard NAMESPACES`.

The chart runs it before it deletes anything. Without an operator the finalizers would stay, and not even the namespace
could be deleted.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from evenkeel.errors import EvenkeelError
from evenkeel.kube.kube_client import Kube
from evenkeel.kube.kubeconfig import load_configuration
from evenkeel.kube.object_kinds import STORE_CLUSTER, TABLE
from evenkeel_operator.kube.object_cache import key_of

__all__ = ["main", "remaining"]


async def remaining(kube: Kube, namespaces: Sequence[str]) -> list[str]:
    """Return the Tables and StoreClusters in these namespaces, or in all."""
    found: list[str] = []
    for kind in (TABLE, STORE_CLUSTER):
        for namespace in namespaces or ("",):
            keys = map(key_of, (await kube.list(kind, namespace)).items)
            found += (f"{kind.name} {place}/{name}" for place, name in keys)
    return found


async def _remaining(namespaces: Sequence[str]) -> list[str]:
    kube = Kube(await load_configuration(None))
    try:
        return await remaining(kube, namespaces)
    finally:
        await kube.close()


def main(arguments: Sequence[str]) -> int:
    """Return 0 if none exists."""
    namespaces = tuple(filter(None, ",".join(arguments).split(",")))
    try:
        left = asyncio.run(_remaining(namespaces))
    except EvenkeelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for name in left:
        print(f"{name} still exists; delete it first, or keep it with `helm uninstall --no-hooks`")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
