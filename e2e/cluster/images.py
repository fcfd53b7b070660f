"""Images as archives, which nodes import; no registry takes part.

An image of one static program needs no container engine to be made: it is a tar of a tar and two small documents.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import platform
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from e2e.cluster.binaries import ROOT, cache_dir, find, version_of
from e2e.cluster.cluster_errors import ClusterError
from e2e.cluster.processes import run

__all__ = ["PREFIX", "built", "export", "forget_old", "program_archive", "program_image", "tags_of"]

PREFIX = "localhost/evenkeel-e2e"
_ARCHIVES_KEPT = 3
"""Number of archives to keep per image; each has half a gigabyte, Spark's more."""
_FORM = 2
"""Format of images with one program; a new number rebuilds them."""
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def program_image(program: str) -> str:
    """Return the name of the image with a program of `binaries/`."""
    return f"{PREFIX}/{program}:{version_of(program)}"


def program_archive(program: str) -> Path:
    """Build an image with only this program, which must be static; cached."""
    archive = _folder() / f"{program}-{version_of(program)}-{_FORM}.tar"
    if not archive.exists():
        with _whole(archive) as partial:
            _write_image(partial, program_image(program), find(program))
    return archive


def built(name: str) -> str:
    """Return the tag that `make images` built from `images/NAME.Containerfile` of this checkout."""
    try:
        return (ROOT / "build" / "images" / f"{name}.tag").read_text().strip()
    except FileNotFoundError:
        raise ClusterError(f"the image {name} is not built yet; run `make images`") from None


def export(tag: str, *, program: str | None = None) -> Path:
    """Export an image of the container engine as an archive, named by the digest of its content.

    With `program`, the archive has a second image, `program_image(program)`, with the program on top.
    """
    digest = run(ROOT / "scripts" / "save-image.sh", tag).strip()
    repository, _, version = tag.rpartition("/")[2].partition(":")
    content = hashlib.sha256(f"{tag} {digest} {program and program_image(program)}".encode()).hexdigest()
    archive = _folder(repository) / f"{version}-{content[:12]}.tar"
    if not archive.exists():
        with _whole(archive) as partial:
            run(ROOT / "scripts" / "save-image.sh", tag, partial, within=600)
            if program is not None:
                _add_image(partial, program_image(program), find(program))
    archive.touch()
    forget_old(archive.parent)
    return archive


def forget_old(folder: Path, *, kept: int = _ARCHIVES_KEPT) -> None:
    """Remove all but the most recently used archives, of any checkout."""

    def used(archive: Path) -> float:
        # Another process may remove it at the same time.
        with contextlib.suppress(FileNotFoundError):
            return archive.stat().st_mtime
        return 0.0

    for archive in sorted(folder.glob("*.tar"), key=used, reverse=True)[kept:]:
        archive.unlink(missing_ok=True)


def tags_of(archive: Path) -> list[str]:
    """Return the names of the images in an archive."""
    with tarfile.open(archive) as tar:
        return [tag for image in _read(tar, "manifest.json") for tag in image["RepoTags"]]


def _folder(repository: str = "") -> Path:
    folder = cache_dir() / "images" / repository
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def _whole(file: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces the file on success."""
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        partial = Path(folder) / file.name
        yield partial
        partial.rename(file)


def _write_image(archive: Path, tag: str, program: Path) -> None:
    """Write an image with one layer and one file."""
    machine = platform.machine()
    empty = {
        "architecture": _ARCHITECTURES.get(machine, machine),
        "os": "linux",
        "config": {"User": "65532:65532", "Env": ["PATH=/"]},
        "rootfs": {"type": "layers", "diff_ids": []},
    }
    with tarfile.open(archive, "w") as tar:
        _add_layer(tar, tag, program, config=empty, below=[], others=[])


def _add_image(archive: Path, tag: str, program: Path) -> None:
    """Add to an archive a second image with one more layer; the last file of a name in a tar wins."""
    with tarfile.open(archive) as tar:
        [image] = _read(tar, "manifest.json")
        config = _read(tar, image["Config"])
    with tarfile.open(archive, "a") as tar:
        _add_layer(tar, tag, program, config=config, below=image["Layers"], others=[image])


def _add_layer(
    tar: tarfile.TarFile,
    tag: str,
    program: Path,
    *,
    config: dict[str, Any],
    below: list[str],
    others: list[dict[str, Any]],
) -> None:
    """Return an image that runs the program at the root, on top of these layers."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as inner:
        _add(inner, program.name, program.read_bytes(), mode=0o755)
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    config["config"]["Entrypoint"] = [f"/{program.name}"]
    config["rootfs"]["diff_ids"].append(f"sha256:{digest}")
    config.pop("history", None)
    described = msgspec.json.encode(config)
    name = f"{hashlib.sha256(described).hexdigest()}.json"
    image = {"Config": name, "RepoTags": [tag], "Layers": [*below, f"{digest}.tar"]}
    _add(tar, f"{digest}.tar", layer.getvalue())
    _add(tar, name, described)
    _add(tar, "manifest.json", msgspec.json.encode([*others, image]))


def _read(tar: tarfile.TarFile, name: str) -> Any:
    file = tar.extractfile(name)
    assert file is not None
    return msgspec.json.decode(file.read())


def _add(tar: tarfile.TarFile, name: str, content: bytes, *, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))
