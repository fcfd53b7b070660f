"""The kinds of objects and their API paths."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from evenkeel.model.partitionassignment import PartitionAssignment
from evenkeel.model.rebalanceplan import RebalancePlan
from evenkeel.model.resource_base import API_VERSION
from evenkeel.model.storecluster import StoreCluster
from evenkeel.model.table import Table

__all__ = [
    "CERTIFICATE",
    "CONFIG_MAP",
    "CUSTOM_RESOURCE_DEFINITION",
    "EVENT",
    "ISSUER",
    "LEASE",
    "NAMESPACE",
    "NODE",
    "PARTITION_ASSIGNMENT",
    "PERSISTENT_VOLUME_CLAIM",
    "POD",
    "POD_DISRUPTION_BUDGET",
    "REBALANCE_PLAN",
    "RESOURCE_KINDS",
    "SECRET",
    "SERVICE",
    "SERVICE_ACCOUNT",
    "STATEFUL_SET",
    "STORE_CLUSTER",
    "TABLE",
    "Kind",
    "Object",
    "kind_of",
]

Object = dict[str, Any]
"""An object as JSON data."""


class Kind(NamedTuple):
    """A kind of object."""

    api_version: str
    name: str
    plural: str
    namespaced: bool = True

    @property
    def group(self) -> str:
        """The API group; empty for the core group."""
        group, slash, _ = self.api_version.partition("/")
        return group if slash else ""

    @property
    def version(self) -> str:
        """The version within the group."""
        return self.api_version.rpartition("/")[2]

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the API path of an object, or of all objects in a namespace or in all namespaces."""
        root = f"/apis/{self.api_version}" if self.group else f"/api/{self.api_version}"
        parts = [root, *(("namespaces", namespace) if self.namespaced and namespace else ()), self.plural]
        return "/".join([*parts, *filter(None, (name, subresource))])


CERTIFICATE: Final = Kind("cert-manager.io/v1", "Certificate", "certificates")
CONFIG_MAP: Final = Kind("v1", "ConfigMap", "configmaps")
CUSTOM_RESOURCE_DEFINITION: Final = Kind(
    "apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False
)
EVENT: Final = Kind("v1", "Event", "events")
ISSUER: Final = Kind("cert-manager.io/v1", "Issuer", "issuers")
LEASE: Final = Kind("coordination.k8s.io/v1", "Lease", "leases")
NAMESPACE: Final = Kind("v1", "Namespace", "namespaces", namespaced=False)
NODE: Final = Kind("v1", "Node", "nodes", namespaced=False)
PERSISTENT_VOLUME_CLAIM: Final = Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
POD: Final = Kind("v1", "Pod", "pods")
POD_DISRUPTION_BUDGET: Final = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
SECRET: Final = Kind("v1", "Secret", "secrets")
SERVICE: Final = Kind("v1", "Service", "services")
SERVICE_ACCOUNT: Final = Kind("v1", "ServiceAccount", "serviceaccounts")
STATEFUL_SET: Final = Kind("apps/v1", "StatefulSet", "statefulsets")

STORE_CLUSTER: Final = Kind(API_VERSION, "StoreCluster", "storeclusters")
TABLE: Final = Kind(API_VERSION, "Table", "tables")
PARTITION_ASSIGNMENT: Final = Kind(API_VERSION, "PartitionAssignment", "partitionassignments")
REBALANCE_PLAN: Final = Kind(API_VERSION, "RebalancePlan", "rebalanceplans")

_KINDS: Final = {
    (kind.api_version, kind.name): kind
    for kind in (
        CERTIFICATE,
        CONFIG_MAP,
        CUSTOM_RESOURCE_DEFINITION,
        EVENT,
        ISSUER,
        LEASE,
        NAMESPACE,
        NODE,
        PERSISTENT_VOLUME_CLAIM,
        POD,
        POD_DISRUPTION_BUDGET,
        SECRET,
        SERVICE,
        SERVICE_ACCOUNT,
        STATEFUL_SET,
        STORE_CLUSTER,
        TABLE,
        PARTITION_ASSIGNMENT,
        REBALANCE_PLAN,
    )
}
RESOURCE_KINDS: Final[dict[type, Kind]] = {
    StoreCluster: STORE_CLUSTER,
    Table: TABLE,
    PartitionAssignment: PARTITION_ASSIGNMENT,
    RebalancePlan: REBALANCE_PLAN,
}
"""The kind of each model."""


def kind_of(subject: Object) -> Kind:
    """Return the kind of an object by its apiVersion and kind."""
    return _KINDS[subject["apiVersion"], subject["kind"]]
