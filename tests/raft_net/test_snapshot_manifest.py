"""Manifests identify exact files and reject unsafe names."""

from __future__ import annotations

import hashlib
import os
import zlib
from pathlib import Path

import pytest

from evenkeel.errors import InvalidInputError
from evenkeel_raft.core.raft_messages import InstallSnapshot
from evenkeel_raft.core.raft_types import Conf, SnapshotMeta
from evenkeel_raft.net.files.partial_snapshot import Partial, key_of, parse_key
from evenkeel_raft.net.files.snapshot_manifest import FileSum, Manifest, check_manifest, make_manifest

CHUNK = 4096
MESSAGE = InstallSnapshot(7, 0, 1, 2, 3, SnapshotMeta(9, 3, Conf((1, 2))))


def write(directory: Path, **files: bytes) -> Path:
    for name, data in files.items():
        (directory / name).write_bytes(data)
    return directory


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK])
def test_sums_cover_every_byte(tmp_path: Path, size: int) -> None:
    """For any size, each chunk has a checksum, and the file's checksum covers the chunks' checksums."""
    data = os.urandom(size)
    manifest = make_manifest(write(tmp_path, f=data), ["f"], chunk_bytes=CHUNK)
    chunks = [data[at : at + CHUNK] for at in range(0, size, CHUNK)]
    sums = b"".join(zlib.crc32(chunk).to_bytes(4, "little") for chunk in chunks)
    assert manifest.files == [FileSum("f", size, hashlib.sha256(sums).digest(), sums)]
    assert all(manifest.verifies(0, place * CHUNK, chunk) for place, chunk in enumerate(chunks))
    assert manifest.size == size


def test_digest_names_exact_files(tmp_path: Path) -> None:
    """The digest changes with one byte, one name or the order of files."""
    write(tmp_path, a=b"1", b=b"1", c=b"2")
    digests = [make_manifest(tmp_path, names).digest() for names in (["a"], ["b"], ["c"], ["a", "c"], ["c", "a"])]
    assert len(set(digests)) == 5
    assert make_manifest(tmp_path, ["a"]).digest() == digests[0]


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/../../x", "/etc/passwd", "a//b", "a/", "a\0b", "x" * 256])
def test_unsafe_names_are_refused(name: str) -> None:
    """Names that leave the directory or name no file are rejected."""
    empty = hashlib.sha256(b"").digest()
    assert "invalid file name" in check_manifest(Manifest(CHUNK, [FileSum(name, 0, empty, b"")]))


def test_names_in_folders_are_accepted(tmp_path: Path) -> None:
    """Files may be in folders; a file and a folder must not share a name."""
    (tmp_path / "a").mkdir()
    write(tmp_path / "a", b=b"1")
    manifest = make_manifest(tmp_path, ["a/b"])
    assert not check_manifest(manifest)
    both = Manifest(manifest.chunk_bytes, [*manifest.files, FileSum("a", 0, hashlib.sha256(b"").digest(), b"")])
    assert "invalid file name 'a'" in check_manifest(both)


def test_inconsistent_manifest_is_rejected(tmp_path: Path) -> None:
    """Wrong sizes, checksums and counts are found before anything is written."""
    manifest = make_manifest(write(tmp_path, f=bytes(5000)), ["f"], chunk_bytes=CHUNK)
    good = manifest.files[0]
    bad = [
        Manifest(1, []),
        Manifest(1 << 40, []),
        Manifest(CHUNK, [good, good]),
        Manifest(CHUNK, [FileSum("f", 5000, good.sum, good.chunks[:-1])]),
        Manifest(CHUNK, [FileSum("f", -5000, good.sum, good.chunks)]),
        Manifest(CHUNK, [FileSum("f", 50_000, good.sum, good.chunks)]),
        Manifest(CHUNK, [FileSum("f", 5000, b"x" * 32, good.chunks)]),
    ]
    assert [bool(check_manifest(manifest)) for manifest in bad] == [True] * len(bad)
    assert not check_manifest(manifest)


def test_unsafe_name_is_not_offered(tmp_path: Path) -> None:
    """A snapshot with a file outside its directory raises an error."""
    write(tmp_path, f=b"x")
    (tmp_path / "inner").mkdir()
    with pytest.raises(InvalidInputError, match=r"invalid file name '\.\./f'"):
        make_manifest(tmp_path / "inner", ["../f"])


def test_keys_name_their_replica() -> None:
    """A directory name identifies its replica; other names are ignored."""
    assert parse_key(key_of(MESSAGE, Manifest(CHUNK, []))) == (7, 2, MESSAGE.meta.index)
    assert [parse_key(name) for name in ("", "lost+found", "7", "7-x-1", "7-2-0-9-3", "7-2-0-x-3-a")] == [None] * 6


def test_partial_resumes_after_the_last_chunk(tmp_path: Path) -> None:
    """After a crash, verified chunks stay and a torn, zeroed or overlong tail is cut off."""
    source = tmp_path / "source"
    source.mkdir()
    data = os.urandom(4 * CHUNK + 100)
    manifest = make_manifest(write(source, f=data, g=b""), ["f", "g"], chunk_bytes=CHUNK)
    for left, expected in [
        (data[: 2 * CHUNK + 50], 2 * CHUNK),
        (data[: 2 * CHUNK] + bytes(CHUNK), 2 * CHUNK),
        (bytes(len(data)), 0),
        (data, len(data)),
        (data + b"more", len(data)),
    ]:
        inbox = tmp_path / "inbox"
        (inbox / "key.partial").mkdir(parents=True)
        write(inbox / "key.partial", f=left)
        files = Partial(inbox, "key", manifest)
        files.prepare()
        assert files.verified == [expected, 0]
        assert (inbox / "key.partial" / "f").stat().st_size == expected
        for offset in range(expected, len(data), CHUNK):
            assert files.expects(0, offset, len(data[offset : offset + CHUNK]))
            assert files.write(0, offset, data[offset : offset + CHUNK])
        assert files.whole
        files.finish()
        assert (inbox / "key" / "f").read_bytes() == data
        assert (inbox / "key" / "g").read_bytes() == b""
        (inbox / "key").rename(tmp_path / f"done-{len(list(tmp_path.iterdir()))}")


def test_corrupt_chunk_is_not_kept(tmp_path: Path) -> None:
    """A chunk with a wrong checksum is not kept, and the correct one is accepted afterwards."""
    data = os.urandom(2 * CHUNK)
    manifest = make_manifest(write(tmp_path, f=data), ["f"], chunk_bytes=CHUNK)
    files = Partial(tmp_path, "key", manifest)
    files.prepare()
    assert not files.write(0, 0, data[CHUNK:])
    assert files.verified == [0]
    assert (tmp_path / "key.partial" / "f").stat().st_size == 0
    assert files.write(0, 0, data[:CHUNK])
    assert not files.expects(0, 0, CHUNK)
    assert not files.expects(0, CHUNK, 5)
    assert not files.expects(1, 0, CHUNK)
    assert not files.expects(-1, 0, CHUNK)
