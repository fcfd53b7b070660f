"""`python -m demo`: installs the signal handlers first, because the imports take a second or two."""

from __future__ import annotations

import sys

from demo.interrupts import deferred_interrupts, install_handlers


def main() -> int:
    """Run the demo; return the exit code."""
    install_handlers()
    try:
        with deferred_interrupts():
            from demo.command import run  # noqa: PLC0415 - Ctrl-C during the import must not print a traceback
        return run()
    except KeyboardInterrupt:
        print("interrupted; stores, etcd and their data have been removed")
        return 130


if __name__ == "__main__":
    sys.exit(main())
