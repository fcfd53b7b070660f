"""Check that the CRDs in the cluster are those of this release.

Helm and `kubectl apply` update CRDs separately from the operator. With older CRDs the API server silently drops fields
that they lack, and rejects a status with a value that they do not allow: the CRDs of the first release enumerate the
condition types (`evenkeel_operator.kube.kube_status_writer` omits the others).

Reading CRDs takes a ClusterRole, which `rbac.scope: namespace` does not grant. The check is skipped there.
"""

from __future__ import annotations

import logging

from evenkeel.errors import ApiForbiddenError
from evenkeel.kube.kube_client import Kube
from evenkeel.kube.object_kinds import CUSTOM_RESOURCE_DEFINITION
from evenkeel.model.crd import SCHEMA_ANNOTATION, schema_hashes

__all__ = ["check_crds"]

log = logging.getLogger(__name__)


async def check_crds(kube: Kube) -> str | None:
    """Return what is wrong with the CRDs and what to do; empty if they match, None if they cannot be read."""
    mismatched: list[str] = []
    for name, wanted in schema_hashes().items():
        try:
            found = await kube.get(CUSTOM_RESOURCE_DEFINITION, name)
        except ApiForbiddenError as error:
            log.info("not checking the CRDs, because that takes a ClusterRole: %s", error)
            return None
        annotations = (found or {}).get("metadata", {}).get("annotations") or {}
        if annotations.get(SCHEMA_ANNOTATION) != wanted:
            mismatched.append(name)
    if not mismatched:
        return ""
    return (
        f"the CRDs {', '.join(mismatched)} do not match this operator's release: the API server drops fields that they "
        "lack, and rejects values that they do not allow; run `helm upgrade` with crds.install=true, or "
        "`kubectl apply --server-side -f crds/` with the files of this release"
    )
