"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evenkeel.cli.output import Output

__all__ = ["Directory", "Printed", "Watch"]

Printed = Annotated[Output, typer.Option("-o", "--output", help="How to print the result.")]
Directory = Annotated[
    Path | None, typer.Option("--dir", help="Directory of the local cluster.", envvar="EVENKEEL_LOCAL")
]
Watch = Annotated[bool, typer.Option("-w", "--watch", help="Keep showing what changes.")]
