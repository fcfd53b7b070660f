"""Names, sizes and checksums of a snapshot's files.

Each file is divided into chunks with a CRC-32 each; the file's checksum is the SHA-256 of its chunks' checksums. One
pass over the bytes computes both. A chunk can be verified when it arrives, a partial file after a restart, and a file
is intact if and only if its chunks and their list are. The checksums protect against failing disks and networks, not
against attackers: peers are authenticated, and state machines have their own checksums.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec
from msgspec import Struct
from zlib_ng.zlib_ng import crc32

from evenkeel.errors import InvalidInputError

__all__ = ["CHUNK_BYTES", "FileSum", "Manifest", "check_manifest", "chunk_sum", "make_manifest"]

CHUNK_BYTES: Final = 1 << 20
_SUM_BYTES: Final = 4
_CHUNK_LIMITS: Final = range(1 << 12, (16 << 20) + 1)
_MAX_FILES: Final = 100_000


class FileSum(Struct, array_like=True, frozen=True):
    """One file: name relative to the snapshot's directory, size, checksum, and the concatenated chunk checksums."""

    name: str
    size: int
    sum: bytes
    chunks: bytes

    def chunk(self, number: int) -> bytes:
        """Return the checksum of a chunk by its number."""
        return self.chunks[number * _SUM_BYTES : (number + 1) * _SUM_BYTES]


class Manifest(Struct, array_like=True, frozen=True):
    """All files of a snapshot."""

    chunk_bytes: int
    files: list[FileSum]

    @property
    def size(self) -> int:
        """Total size in bytes."""
        return sum(file.size for file in self.files)

    def digest(self) -> str:
        """Return a digest that identifies exactly these files."""
        return hashlib.sha256(msgspec.msgpack.encode(self)).hexdigest()[:32]

    def length_at(self, file: int, offset: int) -> int:
        """Return the length of the chunk that starts at an offset."""
        return min(self.chunk_bytes, self.files[file].size - offset)

    def verifies(self, file: int, offset: int, data: bytes | memoryview) -> bool:
        """Whether the data matches the checksum of the chunk at an offset."""
        return chunk_sum(data) == self.files[file].chunk(offset // self.chunk_bytes)


def chunk_sum(data: bytes | memoryview) -> bytes:
    """Return a chunk's checksum."""
    return crc32(data).to_bytes(_SUM_BYTES, "little")


def make_manifest(directory: Path, names: Sequence[str], *, chunk_bytes: int = CHUNK_BYTES) -> Manifest:
    """Read all files once and compute their checksums. Blocks: call it on a thread."""
    problem = _check_names(names)
    if problem:
        raise InvalidInputError(f"snapshot in {directory}: {problem}")
    return Manifest(chunk_bytes, [_sum_file(directory / name, name, chunk_bytes) for name in names])


def _sum_file(path: Path, name: str, chunk_bytes: int) -> FileSum:
    sums, size = bytearray(), 0
    with path.open("rb", buffering=0) as file:
        while data := file.read(chunk_bytes):
            sums += chunk_sum(data)
            size += len(data)
    return FileSum(name, size, hashlib.sha256(sums).digest(), bytes(sums))


def check_manifest(manifest: Manifest) -> str:
    """Return what is wrong with a manifest, or an empty string. File names from a peer are untrusted."""
    if manifest.chunk_bytes not in _CHUNK_LIMITS:
        return f"chunk size {manifest.chunk_bytes} is out of range"
    if problem := _check_names([file.name for file in manifest.files]):
        return problem
    for file in manifest.files:
        if not _is_consistent(file, manifest.chunk_bytes):
            return f"the checksums of {file.name!r} do not match its size"
    return ""


def _check_names(names: Sequence[str]) -> str:
    if len(names) > _MAX_FILES:
        return f"{len(names)} files exceed the limit of {_MAX_FILES}"
    if len(set(names)) < len(names):
        return "duplicate file names"
    parents = {str(parent) for name in names for parent in PurePosixPath(name).parents}
    for name in names:
        if not _is_safe(name) or name in parents:
            return f"invalid file name {name!r}"
    return ""


def _is_safe(name: str) -> bool:
    parts = name.split("/")
    return "\0" not in name and all(part not in ("", ".", "..") and len(part.encode()) <= 255 for part in parts)


def _is_consistent(file: FileSum, chunk_bytes: int) -> bool:
    chunks = -(-file.size // chunk_bytes)
    fits = file.size >= 0 and len(file.chunks) == chunks * _SUM_BYTES
    return fits and hashlib.sha256(file.chunks).digest() == file.sum
