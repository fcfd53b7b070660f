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
from e2e.cluster.errors import ClusterError
from e2e.cluster.process import run

__all__ = ["PREFIX", "built", "export", "forget_old", "program_archive", "program_image", "tags_of"]

PREFIX = "localhost/evenkeel-e2e"
_ARCHIVES_KEPT = 3
"""Of one image; each is half a gigabyte, Spark's more."""
_FORM = 2
"""Of images of one program: another number where what is around it changes, so that they are made anew."""
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def program_image(program: str) -> str:
    """The name of the image that holds one of `binaries/`."""
    return f"{PREFIX}/{program}:{version_of(program)}"


def program_archive(program: str) -> Path:
    """An image of nothing but this program, which must be static; made once."""
    archive = _folder() / f"{program}-{version_of(program)}-{_FORM}.tar"
    if not archive.exists():
        with _whole(archive) as partial:
            _write_image(partial, program_image(program), find(program))
    return archive


def built(name: str) -> str:
    """The tag of what `make images` built from this checkout's `images/NAME.Containerfile`."""
    try:
        return (ROOT / "build" / "images" / f"{name}.tag").read_text().strip()
    except FileNotFoundError:
        raise ClusterError(f"the image {name} is not built yet: run `make images`") from None


def export(tag: str, *, program: str | None = None) -> Path:
    """An image that the container engine has, as an archive; its content's digest is in the name.

    Where a `program` is named, it has a second image, `program_image(program)`: the same with the program on top.
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
    """Remove all archives but those that were used last, whichever checkout they belong to."""

    def used(archive: Path) -> float:
        # Somebody else may remove it at the same time.
        with contextlib.suppress(FileNotFoundError):
            return archive.stat().st_mtime
        return 0.0

    for archive in sorted(folder.glob("*.tar"), key=used, reverse=True)[kept:]:
        archive.unlink(missing_ok=True)


def tags_of(archive: Path) -> list[str]:
    """The names of the images in an archive."""
    with tarfile.open(archive) as tar:
        return [tag for image in _read(tar, "manifest.json") for tag in image["RepoTags"]]


def _folder(repository: str = "") -> Path:
    folder = cache_dir() / "images" / repository
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def _whole(file: Path) -> Iterator[Path]:
    """A name beside the file, that becomes the file when all went well."""
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        partial = Path(folder) / file.name
        yield partial
        partial.rename(file)


def _write_image(archive: Path, tag: str, program: Path) -> None:
    """Of one layer, with one file."""
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
    """Beside the image of an archive, the same with a layer more. Of a tar's files of one name the last one counts."""
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
    """An image that starts the program, which lies on these layers, at the root."""
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
