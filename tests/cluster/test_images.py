"""Image archives that are built without a container engine."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from e2e.cluster import images
from e2e.cluster.cluster_errors import ClusterError


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for pause, and a cache for the test."""
    program = tmp_path / "pause"
    program.write_bytes(b"a static program")
    monkeypatch.setenv("EVENKEEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(images, "find", lambda _: program)
    return program


def content(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None
    return file.read()


def test_image_of_one_program(program: Path) -> None:
    """The archive names its image and layer by digest, and the layer has only the program, executable by anyone."""
    with tarfile.open(images.program_archive("pause")) as archive:
        [manifest] = json.loads(content(archive, "manifest.json"))
        [layer_name] = manifest["Layers"]
        config_bytes, layer_bytes = content(archive, manifest["Config"]), content(archive, layer_name)
    assert manifest["RepoTags"] == [images.program_image("pause")] == images.tags_of(images.program_archive("pause"))
    assert manifest["Config"] == f"{hashlib.sha256(config_bytes).hexdigest()}.json"
    config = json.loads(config_bytes)
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer_bytes).hexdigest()}"]
    assert config["config"] == {"Entrypoint": ["/pause"], "Env": ["PATH=/"], "User": "65532:65532"}
    with tarfile.open(fileobj=io.BytesIO(layer_bytes)) as layer:
        [entry] = layer.getmembers()
        assert (entry.name, entry.mode) == ("pause", 0o755)
        assert content(layer, "pause") == program.read_bytes()


def test_made_once(program: Path) -> None:
    """An existing archive is reused, and no temporary file is left."""
    archive = images.program_archive("pause")
    program.unlink()
    assert images.program_archive("pause") == archive
    assert list(archive.parent.iterdir()) == [archive]


def test_failure_leaves_nothing(program: Path) -> None:
    """An incompletely written archive does not exist."""
    program.unlink()
    with pytest.raises(FileNotFoundError):
        images.program_archive("pause")
    assert list((program.parent / "cache" / "images").iterdir()) == []


def test_old_archives_go(tmp_path: Path) -> None:
    """The most recently used archives stay, however old they are."""
    for number in range(6):
        archive = tmp_path / f"{number}.tar"
        archive.touch()
        os.utime(archive, (100 * number, 100 * number))
    os.utime(tmp_path / "0.tar", (1000, 1000))
    (tmp_path / "partial").mkdir()
    images.forget_old(tmp_path, kept=3)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["0.tar", "4.tar", "5.tar", "partial"]


def test_an_image_that_was_never_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the build command; afterwards the tag is that of this checkout."""
    monkeypatch.setattr(images, "ROOT", tmp_path)
    with pytest.raises(ClusterError, match="make images"):
        images.built("store")
    (tmp_path / "build" / "images").mkdir(parents=True)
    (tmp_path / "build" / "images" / "store.tag").write_text("localhost/evenkeel-store:1-abc\n")
    assert images.built("store") == "localhost/evenkeel-store:1-abc"


def test_a_program_on_top_of_an_image(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive can have an image twice: as built, and with another program to start."""
    built = images.program_archive("pause").read_bytes()

    def save(_: Path, tag: str, *to: Path, within: float = 0) -> str:
        for file in to:
            file.write_bytes(built)
        return "sha256:1234"

    other = tmp_path / "kwok"
    other.write_bytes(b"another program")
    monkeypatch.setattr(images, "run", save)
    monkeypatch.setattr(images, "find", lambda _: other)
    archive = images.export("localhost/evenkeel-base:1", program="kwok")
    assert images.tags_of(archive) == [images.program_image("pause"), images.program_image("kwok")]
    with tarfile.open(archive) as tar:
        below, above = json.loads(content(tar, "manifest.json"))
        config = json.loads(content(tar, above["Config"]))
        layers = [content(tar, name) for name in above["Layers"]]
    assert above["Layers"][:1] == below["Layers"]
    assert config["config"] == {"Entrypoint": ["/kwok"], "Env": ["PATH=/"], "User": "65532:65532"}
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
    assert images.export("localhost/evenkeel-base:1") != archive
