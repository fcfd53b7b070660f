"""The command `evenkeel-raft`; expected errors are printed in one line, without a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from evenkeel.errors import EvenkeelError
from evenkeel.runtime.event_loop import run
from evenkeel.runtime.gc_tuning import relax_gc
from evenkeel.runtime.log_setup import set_up_logs
from evenkeel_raft.process.options import parse_options
from evenkeel_raft.process.sidecar_process import run_sidecar

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a sidecar; return the exit status."""
    try:
        options = parse_options(sys.argv[1:] if arguments is None else arguments, os.environ)
        set_up_logs(level=options.log_level, form=options.log_format, store=options.store)
        relax_gc()
        run(run_sidecar(options))
    except EvenkeelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
