"""`python -m demo`: listens to Ctrl-C before anything else, for what there is to import takes a second or two."""

from __future__ import annotations

import sys

from demo.interrupts import held, listen


def main() -> int:
    """The exit code."""
    listen()
    try:
        with held():
            from demo.command import run  # noqa: PLC0415 - whoever presses Ctrl-C meanwhile sees no traceback
        return run()
    except KeyboardInterrupt:
        print("stopped; stores, etcd and all their data are gone again")
        return 130


if __name__ == "__main__":
    sys.exit(main())
