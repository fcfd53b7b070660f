"""The reference for snapshots: a file sent through one socket and synced at the other end, by two processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

__all__ = ["make_file", "plain_copy"]

HOST = "127.0.0.1"
PIECE = 1 << 20


def make_file(file: Path, size: int) -> None:
    """Write an incompressible file and sync it."""
    with file.open("wb") as opened:
        for _ in range(size // PIECE):
            opened.write(os.urandom(PIECE))
        opened.flush()
        os.fsync(opened.fileno())


def plain_copy(source: Path) -> float:
    """Return the MB/s from the first byte sent until the copy is durable."""
    copy = source.with_name("copy")
    command = [sys.executable, "-m", __name__, str(copy)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        with socket.create_connection((HOST, port)) as connection, source.open("rb") as file:
            began = time.perf_counter()
            connection.sendfile(file)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)
            taken = time.perf_counter() - began
    copy.unlink()
    return source.stat().st_size / 1e6 / taken


def _serve(target: str) -> None:
    with socket.create_server((HOST, 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        connection, _ = listener.accept()
        buffer = memoryview(bytearray(PIECE))
        with connection, Path(target).open("wb", buffering=0) as file:
            while size := connection.recv_into(buffer):
                file.write(buffer[:size])
            os.fsync(file.fileno())
            connection.sendall(b".")


if __name__ == "__main__":
    _serve(sys.argv[1])
