"""Run the reference state machine: `python -m evenkeel_reference --socket PATH --data DIR`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from evenkeel.errors import EvenkeelError, InvalidInputError
from evenkeel.runtime.event_loop import run
from evenkeel.wire.store_socket import DEFAULT_CREDIT, StoreSocket
from evenkeel_reference.reference_machine import ReferenceMachine
from evenkeel_reference.reference_server import ReferenceServer

_DRAIN_TIMEOUT: Final = 10.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT; return the exit status."""
    options = _parser().parse_args(arguments)
    try:
        run(_run(options))
    except EvenkeelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m evenkeel_reference", description=__doc__)
    parser.add_argument("--socket", type=Path, required=True, help="Path of the sidecar's socket.")
    parser.add_argument("--data", type=Path, required=True, help="Directory for the state; created if missing.")
    parser.add_argument(
        "--listen", default="", metavar="HOST:PORT", help="Serve clients at this address; port 0 picks a free port."
    )
    parser.add_argument(
        "--credit", type=int, default=DEFAULT_CREDIT, metavar="BYTES", help="Limit the bytes of unanswered entries."
    )
    return parser


async def _run(options: argparse.Namespace) -> None:
    host, port = _address(options.listen)
    machine = ReferenceMachine(options.data)
    sidecar = StoreSocket(options.socket, volume=machine.volume, state_machine=machine, credit=options.credit)
    server = ReferenceServer(machine, sidecar)
    if options.listen:
        print(f"listening on {host}:{await server.start(host, port)}", flush=True)
    running = asyncio.create_task(sidecar.run())
    stop = asyncio.create_task(_signalled())
    try:
        await asyncio.wait((running, stop), return_when=asyncio.FIRST_COMPLETED)
        if stop.done():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(sidecar.drain(), _DRAIN_TIMEOUT)
        else:
            await running
    finally:
        for task in (running, stop):
            task.cancel()
        await asyncio.gather(running, stop, return_exceptions=True)
        await server.close()
        await machine.stop()


async def _signalled() -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if text and (not colon or not port.isdecimal() or int(port) > 65535):
        raise InvalidInputError(f"--listen {text}: not an address; use HOST:PORT, for example 127.0.0.1:7000")
    return host, int(port) if port else 0


if __name__ == "__main__":
    sys.exit(main())
