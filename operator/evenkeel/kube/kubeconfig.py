"""Finds the API server, the credentials and the namespace like kubectl.

The order is `--kubeconfig`, the files in KUBECONFIG, ~/.kube/config, and inside of a pod its ServiceAccount. A
kubeconfig is never written, but the credential plugin that it names may be run.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final, NamedTuple

from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

from evenkeel.errors import InvalidInputError

__all__ = ["Access", "find_access", "load_configuration"]

_POD_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class Access(NamedTuple):
    """The configuration of an API client, and the selected namespace."""

    configuration: Configuration
    namespace: str


async def load_configuration(kubeconfig: Path | None) -> Configuration:
    """Load the configuration of a program: from a kubeconfig, or from the ServiceAccount of its pod."""
    configuration = Configuration()
    try:
        if kubeconfig is None:
            load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            await _load(configuration, str(kubeconfig))
    except (ConfigException, OSError) as error:
        source = f"--kubeconfig {kubeconfig}" if kubeconfig else "not running in a pod; set --kubeconfig"
        raise InvalidInputError(f"cannot configure access to the API server: {source}: {error}") from error
    return configuration


async def find_access(*, kubeconfig: Path | None = None, context: str = "", namespace: str = "") -> Access:
    """Return the configuration and the namespace that the options select."""
    paths, exists = _files(kubeconfig)
    if not exists:
        return _in_pod(namespace, missing=paths)
    configuration = Configuration()
    try:
        loader = await _load(configuration, paths, context=context)
    except (ConfigException, OSError, ValueError) as error:
        raise InvalidInputError(f"kubeconfig {paths}: {str(error).strip()}; see `kubectl config view`") from error
    return Access(configuration, namespace or loader.current_context["context"].get("namespace") or "default")


def _files(kubeconfig: Path | None) -> tuple[str, bool]:
    """Return the kubeconfig files, and whether any of them exists."""
    if kubeconfig is not None and not kubeconfig.is_file():
        raise InvalidInputError(f"--kubeconfig: {kubeconfig} is not a file")
    paths = str(kubeconfig or os.environ.get("KUBECONFIG") or Path.home() / ".kube" / "config")
    return paths, any(Path(path).expanduser().is_file() for path in paths.split(os.pathsep))


async def _load(configuration: Configuration, paths: str, *, context: str = "") -> Any:
    return await load_kube_config(  # type: ignore[no-untyped-call]
        config_file=paths, context=context or None, client_configuration=configuration, persist_config=False
    )


def _in_pod(namespace: str, *, missing: str) -> Access:
    configuration = Configuration()
    try:
        load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    except (ConfigException, OSError):
        raise InvalidInputError(
            f"no Kubernetes cluster configured: {missing} does not exist; set --kubeconfig or KUBECONFIG"
        ) from None
    own = _POD_NAMESPACE.read_text().strip() if _POD_NAMESPACE.is_file() else "default"
    return Access(configuration, namespace or own)
