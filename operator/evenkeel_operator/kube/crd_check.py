"""Whether the CRDs in the cluster are those that this operator comes with.

Helm and `kubectl apply` update them apart from the operator. With older ones the API server silently drops every field
that they do not have, and refuses a status with a value that they do not allow: those of the first release list the
types of conditions (`evenkeel_operator.kube.kube_status_writer` leaves out the others).

Reading CRDs takes a ClusterRole, which `rbac.scope: namespace` does not grant. There nobody checks.
"""

from __future__ import annotations

import logging

from evenkeel.errors import ApiForbiddenError
from evenkeel.kube.kube_client import Kube
from evenkeel.kube.object_kinds import CUSTOM_RESOURCE_DEFINITION
from evenkeel.model.crd import SCHEMA_ANNOTATION, schema_hashes

__all__ = ["check_definitions"]

log = logging.getLogger(__name__)


async def check_definitions(kube: Kube) -> str | None:
    """Return what is wrong with the CRDs, and what to do; empty where they match, None where they may not be read."""
    others: list[str] = []
    for name, wanted in schema_hashes().items():
        try:
            found = await kube.get(CUSTOM_RESOURCE_DEFINITION, name)
        except ApiForbiddenError as error:
            log.info("whether the CRDs match this operator is not checked, which takes a ClusterRole: %s", error)
            return None
        annotations = (found or {}).get("metadata", {}).get("annotations") or {}
        if annotations.get(SCHEMA_ANNOTATION) != wanted:
            others.append(name)
    if not others:
        return ""
    return (
        f"the CRDs {', '.join(others)} are of another release than this operator: the API server drops fields that "
        "they do not have, and refuses values that they do not allow; run `helm upgrade` with crds.install=true, or "
        "`kubectl apply --server-side -f crds/` with the files of this release"
    )
