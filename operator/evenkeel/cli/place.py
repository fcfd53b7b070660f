"""Which cluster a command is for, and the options that say it: a directory of this machine, or what kubectl would ask.

The verbs are the same for both. A command asks for a `place`; each of the two programs gives it options of its own in
place of that.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import typer

from evenkeel.cli.options import Directory

__all__ = ["Cluster", "Local", "Place", "Program", "cluster_place", "command", "local_place"]

Verb = TypeVar("Verb", bound=Callable[..., None])


class Local(NamedTuple):
    """A cluster on this machine."""

    directory: Path | None = None


class Cluster(NamedTuple):
    """A namespace of a Kubernetes."""

    namespace: str = ""
    """Empty for the one that the context names."""
    context: str = ""
    kubeconfig: Path | None = None


Place = Local | Cluster


def local_place(directory: Directory = None) -> Place:
    """What `evenkeel` is asked."""
    return Local(directory)


def cluster_place(
    namespace: Annotated[str, typer.Option("-n", "--namespace", help="Namespace; the context's by default.")] = "",
    context: Annotated[str, typer.Option("--context", help="Context of the kubeconfig.")] = "",
    kubeconfig: Annotated[Path | None, typer.Option("--kubeconfig", help="File that says how to get there.")] = None,
) -> Place:
    """What `kubectl evenkeel` is asked."""
    return Cluster(namespace, context, kubeconfig)


class Program(NamedTuple):
    """An application, and how it asks for a place."""

    app: typer.Typer
    place: Callable[..., Place]


def command(*programs: Program, name: str | None = None) -> Callable[[Verb], Verb]:
    """Make a function a command of these programs."""

    def register(verb: Verb) -> Verb:
        for program in programs:
            program.app.command(name)(_placed(verb, program.place))
        return verb

    return register


def _placed(verb: Callable[..., None], place: Callable[..., Place]) -> Callable[..., None]:
    """The verb with the parameters of `place` where it asks for one."""
    own = inspect.signature(verb, eval_str=True)
    options = inspect.signature(place, eval_str=True).parameters
    if "place" not in own.parameters:
        return verb

    @functools.wraps(verb)
    def placed(**given: Any) -> None:
        chosen = {name: given.pop(name) for name in options}
        verb(**given, place=place(**chosen))

    kept = [parameter for name, parameter in own.parameters.items() if name != "place"]
    shown = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in (*kept, *options.values())]
    placed.__signature__ = own.replace(parameters=shown)  # type: ignore[attr-defined]
    placed.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return placed
