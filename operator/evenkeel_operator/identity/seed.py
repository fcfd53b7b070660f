"""The seed of all keys and access tokens: generated once, and stored in a Secret beside the operator."""

from __future__ import annotations

import base64
import secrets
from typing import Final

from evenkeel.errors import ApiConflictError, InvalidInputError
from evenkeel.kube.kube_client import Kube
from evenkeel.kube.object_kinds import SECRET, Object
from evenkeel_operator.identity.authority import SEED_BYTES

__all__ = ["load_seed"]

_KEY: Final = "seed"


async def load_seed(kube: Kube, name: str, namespace: str) -> bytes:
    """Read the seed from its Secret, or generate it; without it all certificates and tokens change."""
    found = await kube.get(SECRET, name, namespace)
    if found is None:
        data = {_KEY: base64.b64encode(secrets.token_bytes(SEED_BYTES)).decode()}
        metadata = {"name": name, "namespace": namespace}
        wanted = {"apiVersion": SECRET.api_version, "kind": SECRET.name, "metadata": metadata, "data": data}
        try:
            found = await kube.create(wanted)
        except ApiConflictError:
            found = await kube.get(SECRET, name, namespace)
    return _seed(found or {}, f"Secret {namespace}/{name}")


def _seed(secret: Object, source: str) -> bytes:
    try:
        seed = base64.b64decode((secret.get("data") or {})[_KEY], validate=True)
    except (KeyError, ValueError):
        seed = b""
    if len(seed) < SEED_BYTES:
        raise InvalidInputError(
            f"{source} has no `{_KEY}` of at least {SEED_BYTES} bytes; restore it, or delete the Secret to replace all "
            "certificates and tokens"
        )
    return seed
