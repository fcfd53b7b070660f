"""Options that several commands share; importing it loads neither rich nor pydantic, so `--help` stays fast."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["Directory", "Output", "OutputOption", "Watch"]


class Output(enum.StrEnum):
    """Format of a command's output."""

    TABLE = "table"
    JSON = "json"


OutputOption = Annotated[Output, typer.Option("-o", "--output", help="Output format.")]
Directory = Annotated[
    Path | None, typer.Option("--dir", help="Directory of the local cluster.", envvar="EVENKEEL_LOCAL")
]
Watch = Annotated[bool, typer.Option("-w", "--watch", help="Watch for changes until interrupted.")]
