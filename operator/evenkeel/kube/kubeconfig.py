"""Which API server, as whom and in which namespace: found as kubectl finds it.

`--kubeconfig`, else the files that KUBECONFIG lists, else ~/.kube/config, else, inside of a pod, its ServiceAccount. A
kubeconfig is never written to, though credentials may be fetched by the program that it names.
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
    """A way to an API server, and the namespace that is meant there."""

    configuration: Configuration
    namespace: str


async def load_configuration(kubeconfig: Path | None) -> Configuration:
    """How a program reaches the API server: by a kubeconfig that it was given, or as a pod does."""
    configuration = Configuration()
    try:
        if kubeconfig is None:
            load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            await _load(configuration, str(kubeconfig))
    except (ConfigException, OSError) as error:
        where = f"--kubeconfig {kubeconfig}" if kubeconfig else "this is no pod of Kubernetes; give --kubeconfig"
        raise InvalidInputError(f"the API server cannot be found: {where}: {error}") from error
    return configuration


async def find_access(*, kubeconfig: Path | None = None, context: str = "", namespace: str = "") -> Access:
    """What a person means who says this, or leaves it out."""
    paths, there = _files(kubeconfig)
    if not there:
        return _inside_of_a_pod(namespace, looked_for=paths)
    configuration = Configuration()
    try:
        loader = await _load(configuration, paths, context=context)
    except (ConfigException, OSError, ValueError) as error:
        raise InvalidInputError(f"kubeconfig {paths}: {str(error).strip()}; see `kubectl config view`") from error
    return Access(configuration, namespace or loader.current_context["context"].get("namespace") or "default")


def _files(kubeconfig: Path | None) -> tuple[str, bool]:
    """The files that say where clusters are, and whether there are any."""
    if kubeconfig is not None and not kubeconfig.is_file():
        raise InvalidInputError(f"--kubeconfig: {kubeconfig} is no file")
    paths = str(kubeconfig or os.environ.get("KUBECONFIG") or Path.home() / ".kube" / "config")
    return paths, any(Path(path).expanduser().is_file() for path in paths.split(os.pathsep))


async def _load(configuration: Configuration, paths: str, *, context: str = "") -> Any:
    return await load_kube_config(  # type: ignore[no-untyped-call]
        config_file=paths, context=context or None, client_configuration=configuration, persist_config=False
    )


def _inside_of_a_pod(namespace: str, *, looked_for: str) -> Access:
    configuration = Configuration()
    try:
        load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    except (ConfigException, OSError):
        raise InvalidInputError(
            f"no cluster is known: {looked_for} is not there; give --kubeconfig, or set KUBECONFIG"
        ) from None
    own = _POD_NAMESPACE.read_text().strip() if _POD_NAMESPACE.is_file() else "default"
    return Access(configuration, namespace or own)
