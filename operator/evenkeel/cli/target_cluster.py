"""The cluster a command is for, and the options that select it.

`evenkeel` and `kubectl evenkeel` share their verbs. A verb declares a `target` parameter; each program replaces it by
its own options: a directory on this machine, or the namespace, context and kubeconfig.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import typer

from evenkeel.cli.options import Directory

__all__ = ["KubeTarget", "LocalTarget", "Program", "Target", "command", "kube_target", "local_target"]

Verb = TypeVar("Verb", bound=Callable[..., None])


class LocalTarget(NamedTuple):
    """A local cluster."""

    directory: Path | None = None


class KubeTarget(NamedTuple):
    """A namespace of a Kubernetes cluster."""

    namespace: str = ""
    """Empty for the namespace of the context."""
    context: str = ""
    kubeconfig: Path | None = None


Target = LocalTarget | KubeTarget


def local_target(directory: Directory = None) -> Target:
    """Return the target from the options of `evenkeel`."""
    return LocalTarget(directory)


def kube_target(
    namespace: Annotated[
        str, typer.Option("-n", "--namespace", help="Namespace; defaults to the one of the context.")
    ] = "",
    context: Annotated[str, typer.Option("--context", help="Context of the kubeconfig.")] = "",
    kubeconfig: Annotated[Path | None, typer.Option("--kubeconfig", help="Path to the kubeconfig.")] = None,
) -> Target:
    """Return the target from the options of `kubectl evenkeel`."""
    return KubeTarget(namespace, context, kubeconfig)


class Program(NamedTuple):
    """An application, and the options by which it selects a target."""

    app: typer.Typer
    target: Callable[..., Target]


def command(*programs: Program, name: str | None = None, hidden: bool = False) -> Callable[[Verb], Verb]:
    """Register a function as a command of these programs."""

    def register(verb: Verb) -> Verb:
        for program in programs:
            program.app.command(name, hidden=hidden)(_with_target(verb, program.target))
        return verb

    return register


def _with_target(verb: Callable[..., None], target: Callable[..., Target]) -> Callable[..., None]:
    """Replace the verb's `target` parameter by the parameters of `target`."""
    signature = inspect.signature(verb, eval_str=True)
    options = inspect.signature(target, eval_str=True).parameters
    if "target" not in signature.parameters:
        return verb

    @functools.wraps(verb)
    def wrapper(**given: Any) -> None:
        chosen = {name: given.pop(name) for name in options}
        verb(**given, target=target(**chosen))

    kept = [parameter for name, parameter in signature.parameters.items() if name != "target"]
    shown = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in (*kept, *options.values())]
    wrapper.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return wrapper
