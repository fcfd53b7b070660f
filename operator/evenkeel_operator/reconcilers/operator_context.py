"""What the reconcilers of one leader's term share."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

import msgspec

from evenkeel.kube.kube_client import Kube
from evenkeel.kube.object_kinds import STATEFUL_SET, Object, kind_of
from evenkeel_operator.identity.metastore_connections import Metastores
from evenkeel_operator.identity.store_certificates import CertificateSource
from evenkeel_operator.kube.kube_status_writer import KubeStatusWriter
from evenkeel_operator.kube.object_applier import Applier
from evenkeel_operator.kube.object_cache import Cache, Key
from evenkeel_operator.kube.resource_reader import Reader
from evenkeel_operator.manifests.pod_settings import PodSettings
from evenkeel_operator.reconcilers.cluster_controllers import ClusterControllers
from evenkeel_operator.reconcilers.store_cluster_status import StoreClusterStatuses

__all__ = ["OperatorContext", "Reconciler", "caching_applier"]


class Reconciler(Protocol):
    """Reconciles the objects of one kind."""

    async def reconcile(self, key: Key) -> float | None:
        """Bring an object to its desired state; return in how many seconds to reconcile it again, or None."""


class OperatorContext(msgspec.Struct, frozen=True, kw_only=True):
    """The connections, caches and settings that reconcilers work with."""

    kube: Kube
    cache: Cache
    statuses: KubeStatusWriter
    reader: Reader
    applier: Applier
    settings: PodSettings
    seed: bytes
    certificates: CertificateSource
    metastores: Metastores
    controllers: ClusterControllers
    cluster_statuses: StoreClusterStatuses
    wall_clock: Callable[[], datetime] = lambda: datetime.now(UTC)


def caching_applier(kube: Kube, cache: Cache) -> Applier:
    """Return an applier that caches a StatefulSet as soon as it is written.

    A reconciliation that saw the number of pods from before a scale-up could remove stores that are not drained.
    """

    def on_write(subject: Object) -> None:
        if kind_of(subject) == STATEFUL_SET:
            cache.put(STATEFUL_SET, subject)

    return Applier(kube, on_write=on_write)
