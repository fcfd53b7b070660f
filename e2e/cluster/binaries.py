"""Where the programs of a cluster are: given by `KUBEBUILDER_ASSETS`, built into the cache, or on PATH.

What `make binaries ONLY=cluster` built goes before PATH, because its versions fit each other. etcd is found as
everywhere else in the project.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from pathlib import Path

from e2e.cluster.cluster_errors import UnavailableError
from evenkeel.metastore.etcd_binary import find_etcd

__all__ = ["ROOT", "cache_dir", "find", "lacking", "shell_path", "version_of"]

ROOT = Path(__file__).resolve().parents[2]

CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
_KUBERNETES = (*CONTROL_PLANE, "kubelet", "kube-proxy", "kubectl")
_FOLDERS = dict.fromkeys(_KUBERNETES, "kubernetes")
"""Programs that share a folder of `binaries/` with others."""


def cache_dir() -> Path:
    """Return the cache folder, which the scripts use too."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("EVENKEEL_CACHE") or Path(base) / "evenkeel")


def version_of(folder: str) -> str:
    """Return the pinned version of a folder of `binaries/`, or the digest of our own program."""
    module = ROOT / "binaries" / folder
    pinned = re.search(r"^require \S+ v(\S+)$", (module / "go.mod").read_text(), re.MULTILINE)
    return pinned[1] if pinned else hashlib.sha256((module / "main.go").read_bytes()).hexdigest()[:12]


def find(program: str) -> Path:
    """Return the path of a program; UnavailableError if it is missing."""
    found = find_etcd().path if program == "etcd" else _find(program)
    if found is None:
        raise UnavailableError(
            f"{program} is neither in $KUBEBUILDER_ASSETS, nor built, nor on PATH; run `make binaries ONLY=cluster`"
        )
    return found


def shell_path() -> str:
    """Return a PATH with kubectl, helm and `kubectl evenkeel`."""
    programs = {find(program).parent for program in ("kubectl", "helm") if shutil.which(program) is None}
    plugin = {ROOT / ".venv" / "bin"} if shutil.which("kubectl-evenkeel") is None else set()
    return ":".join([*map(str, sorted(programs | plugin)), "$PATH"])


def lacking(*programs: str) -> list[str]:
    """Return the programs that are missing."""
    return [program for program in programs if program != "etcd" and _find(program) is None]


def _find(program: str) -> Path | None:
    folder = _FOLDERS.get(program, program)
    places = [cache_dir() / "bin" / f"{folder}-{version_of(folder)}" / program]
    if assets := os.environ.get("KUBEBUILDER_ASSETS"):
        places.insert(0, Path(assets) / program)
    if on_path := shutil.which(program):
        places.append(Path(on_path))
    return next((place for place in places if os.access(place, os.X_OK)), None)
