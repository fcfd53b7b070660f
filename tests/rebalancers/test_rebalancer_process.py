"""Users' classes in a child process: their inputs, and their isolation from the operator."""

from __future__ import annotations

import asyncio
import os
import select
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evenkeel.errors import RebalancerError
from evenkeel.model.resource_loading import load_yaml
from evenkeel.model.table import Table
from evenkeel.model.views import Assignment, CurrentState, StoresView, StoreView, TableView
from evenkeel.rebalancers.rebalancer_api import MAX_CONTEXT, RebalanceResult
from evenkeel.rebalancers.rebalancer_process import Limits
from evenkeel.rebalancers.rebalancer_runner import rebalance

TABLE = TableView(name="t", partitions=2, replicas=1, consensus_size=1, config={"fifo": "", "n": 7})
STORES = StoresView.of(StoreView(name="a"), StoreView(name="b"))
PREVIOUS = Assignment.of([["a"], ["b"]], voters=1)
AMPLE = Limits(seconds=100)
"""Enough time on a busy machine."""
GONE_WITHIN_MS = 10_000
EXAMPLES = Path(__file__).parents[2] / "examples"

HEAD = """
import ctypes, gc, os, signal, subprocess, sys, threading, time
from evenkeel.model.views import Assignment

class Good:
    def init(self, context):
        self.context = context

    def compute(self, table, previous, stores, current):
        return Assignment.of([["a"], ["a"]], voters=1)
"""


class Runner:
    """Writes a module and runs a class of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def __call__(
        self,
        body: str = "",
        *,
        method: str = "compute",
        name: str = "User",
        context: bytes | None = None,
        table: TableView = TABLE,
        limits: Limits | None = None,
    ) -> RebalanceResult:
        arguments = {"compute": "self, table, previous, stores, current", "init": "self, context"}[method]
        ending = "\n        return super().compute(table, previous, stores, current)" if method == "compute" else ""
        code = textwrap.indent(textwrap.dedent(body).strip() or "pass", " " * 8)
        text = f"{HEAD}\nclass User(Good):\n    def {method}({arguments}):\n{code}{ending}\n"
        (self.folder / "module.py").write_text(text)
        return await self.run(f"module:{name}", context=context, table=table, limits=limits)

    async def run(
        self,
        class_name: str,
        *,
        context: bytes | None = None,
        table: TableView = TABLE,
        limits: Limits | None = None,
    ) -> RebalanceResult:
        limits = limits or AMPLE
        return await rebalance(
            table,
            mode="UserDefined",
            class_name=class_name,
            previous=PREVIOUS,
            stores=STORES,
            current=CurrentState(leaders={0: "b"}, moving=frozenset({1})),
            context=context,
            limits=Limits(seconds=limits.seconds, memory=limits.memory, path=(str(self.folder),)),
        )


@pytest.fixture
def run(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


class Fifo:
    """A named pipe that a child keeps open: end of file proves that all processes holding it have ended."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.table = TableView(name="t", partitions=2, replicas=1, consensus_size=1, config={"fifo": str(path)})
        self.reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    async def opened(self) -> None:
        """Wait until a child has written to it."""
        ready = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(self.reader, ready.set)
        await ready.wait()
        loop.remove_reader(self.reader)

    def ended(self) -> bool:
        """Read until the last holder has ended; return False if one stays."""
        poll = select.poll()
        poll.register(self.reader, select.POLLIN)
        while poll.poll(GONE_WITHIN_MS):
            if not os.read(self.reader, 4096):
                return True
        return False


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[Fifo]:
    made = Fifo(tmp_path / "fifo")
    yield made
    os.close(made.reader)


HOLD = """
fifo = os.open(table.config["fifo"], os.O_WRONLY)
os.set_inheritable(fifo, True)
os.write(fifo, b"up")
"""


async def test_answer(run: Runner) -> None:
    """A valid assignment is returned unchanged."""
    result = await run()
    assert result.assignment == Assignment.of([["a"], ["a"]], voters=1)
    assert result.context is None


async def test_arguments(run: Runner) -> None:
    """The class gets table, config, previous assignment, stores and current state."""
    await run(
        """
        assert (table.name, table.partitions, table.replicas, table.consensus_size) == ("t", 2, 1, 1)
        assert table.config == self.context.config == {"fifo": "", "n": 7}
        assert [previous.stores_of(p) for p in range(2)] == [("a",), ("b",)]
        assert [store.name for store in stores.live()] == ["a", "b"]
        assert current.leaders == {0: "b"} and current.moving == {1}
        """
    )


async def test_context(run: Runner) -> None:
    """What one run saves, the next one loads; the first loads None."""
    body = """
        seen = self.context.load() or []
        self.context.save([*seen, "run"])
    """
    first = await run(body)
    assert first.context == b'["run"]'
    second = await run(body, context=first.context)
    assert second.context == b'["run","run"]'
    kept = await run("assert self.context.load() == ['run']", context=first.context)
    assert kept.context == first.context


async def test_init_runs_once_per_run(run: Runner) -> None:
    """`init` is called once, before `compute`; state in self does not survive the run."""
    body = (
        "self.context = context; context.save((context.load() or 0) + 1); assert not hasattr(self, 'was'); self.was = 1"
    )
    first = await run(body, method="init")
    second = await run(body, method="init", context=first.context)
    assert (first.context, second.context) == (b"1", b"2")


@pytest.mark.parametrize(
    ("class_name", "problem"),
    [
        ("nowhere:User", "cannot be imported: module nowhere raised: ModuleNotFoundError: No module named 'nowhere'"),
        ("module:Nobody", "cannot be imported: module module has no such name"),
        ("module:os", "cannot be imported: module module has a module of that name, not a class"),
        ("module:Assignment", "is not a rebalancer: it has no method init"),
        ("broken:User", "cannot be imported: module broken raised: SyntaxError: "),
        ("leaving:User", "cannot be imported: module leaving raised: SystemExit: 3"),
        ("module:Strict", "raised when it was created without arguments: TypeError: "),
    ],
)
async def test_classes_that_cannot_be_loaded(run: Runner, class_name: str, problem: str) -> None:
    """The error names the class, and why it cannot be loaded."""
    (run.folder / "module.py").write_text(HEAD + "\nclass Strict(Good):\n    def __init__(self, x): pass\n")
    (run.folder / "broken.py").write_text("def (")
    (run.folder / "leaving.py").write_text("import sys; sys.exit(3)")
    with pytest.raises(RebalancerError) as caught:
        await run.run(class_name)
    assert str(caught.value).startswith(f"class {class_name} {problem}")


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("raise ValueError('no idea')", "raised in compute: ValueError: no idea"),
        ("sys.exit(3)", "raised in compute: SystemExit: 3"),
        ("raise KeyboardInterrupt", "raised in compute: KeyboardInterrupt: "),
        ("def f(): f()\nf()", "raised in compute: RecursionError: "),
        ("return None", "returned a NoneType; compute must return an evenkeel.model.views.Assignment"),
        ("return {0: ['a']}", "returned a dict; compute must return an evenkeel.model.views.Assignment"),
        ("return Assignment(['a'], [0, 0], voters=1)", "returned an invalid Assignment: IndexError: "),
        (
            "return Assignment.empty(2)",
            "returned an invalid assignment: the assignment has 0 voters per partition; allowed: 1",
        ),
        (
            "return Assignment.of([], voters=1)",
            "returned an invalid assignment: table t has 2 partitions, but the assignment",
        ),
        ("return Assignment.of([['a'], []], voters=1)", "returned an invalid assignment: partition 1 has no stores"),
        (
            "return Assignment.of([['a'], ['z']], voters=1)",
            "returned an invalid assignment: partition 1 names store z, which",
        ),
        ("os._exit(7)", "ended its process with code 7 without a result"),
        ("os._exit(0)", "ended without a readable result"),
        ("ctypes.string_at(0)", "ended by signal SIGSEGV without a result"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "ended by signal SIGKILL without a result"),
        (
            "for fd in range(3, 64):\n    try: os.write(fd, b'garbage')\n    except OSError: pass",
            "ended without a readable result",
        ),
        ("os.closerange(3, 64)", "ended its process with code 1 without a result"),
        ("self.context.save({1, object()})", "raised in compute: TypeError: "),
        (
            f"self.context.save('x' * {MAX_CONTEXT})",
            f"raised in compute: RebalancerError: context: got {MAX_CONTEXT + 2}",
        ),
        ("while True: print('x' * 65536)", "raised in compute: OSError: [Errno 27] File too large"),
        ("x = bytearray(1 << 40)", "raised in compute: MemoryError: "),
    ],
)
async def test_classes_that_fail(run: Runner, body: str, problem: str) -> None:
    """The error names the class, and what it did."""
    with pytest.raises(RebalancerError) as caught:
        await run(body)
    assert str(caught.value).startswith(f"class module:User {problem}")


async def test_init_that_fails(run: Runner) -> None:
    """`init` is checked like `compute`."""
    with pytest.raises(RebalancerError, match="class module:User raised in init: KeyError: 'size'"):
        await run("context.config['size']", method="init")


async def test_growth_is_bounded(run: Runner) -> None:
    """Memory that grows step by step is limited, with a MemoryError."""
    limits = Limits(memory=64 << 20, seconds=AMPLE.seconds)
    with pytest.raises(RebalancerError, match="raised in compute: MemoryError"):
        await run("hoard = []\nwhile True: hoard.append(bytearray(1 << 20))", limits=limits)


async def test_traceback_is_quoted(run: Runner) -> None:
    """The message ends with the traceback in the user's code."""
    with pytest.raises(RebalancerError, match=r'module\.py", line \d+, in compute\n.*raise ValueError') as caught:
        await run("raise ValueError('no idea')")
    assert caught.value.__cause__ is None


async def test_printing_is_allowed(run: Runner) -> None:
    """A class may print; its output is quoted only if it fails."""
    await run("print('garbage' * 1000); os.write(1, bytes(range(256))); sys.stdout.write('\\x00')")
    with pytest.raises(RebalancerError, match="ended its process with code 7 without a result; it printed:\nso long"):
        await run("print('so long'); os._exit(7)")


async def test_hanging(run: Runner, fifo: Fifo) -> None:
    """A class that hangs and ignores signals is killed at the time limit, with all its processes."""
    body = HOLD + "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: signal.pause()"
    with pytest.raises(RebalancerError, match=r"timed out after 1\.5 s and was killed"):
        await run(body, table=fifo.table, limits=Limits(seconds=1.5))
    assert fifo.ended()


async def test_processes_left_behind(run: Runner, fifo: Fifo) -> None:
    """Processes that a class leaves behind are killed, even after a valid result."""
    body = HOLD + "subprocess.Popen(['sleep', '1000'], close_fds=False)"
    await run(body, table=fifo.table)
    assert fifo.ended()


async def test_threads_left_behind(run: Runner) -> None:
    """A thread that never ends does not delay the result."""
    await run("threading.Thread(target=signal.pause).start(); threading.Thread(target=time.sleep, args=(99,)).start()")


async def test_loop_is_free(run: Runner, fifo: Fifo) -> None:
    """While a class computes, the event loop continues: here it opens the gate that the class waits for."""
    gate = run.folder / "gate"
    os.mkfifo(gate)
    body = HOLD + f"open({str(gate)!r}).read()"
    task = asyncio.create_task(run(body, table=fifo.table))
    await fifo.opened()
    os.close(os.open(gate, os.O_WRONLY))
    assert (await task).assignment.partitions == 2


@pytest.mark.timeout(30)
async def test_cancelling(run: Runner, fifo: Fifo) -> None:
    """Cancelling the caller kills the child at once."""
    task = asyncio.create_task(run(HOLD + "signal.pause()", table=fifo.table, limits=Limits(seconds=600)))
    await fifo.opened()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert fifo.ended()


async def test_nothing_is_left_open(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither results nor failures leave file descriptors or zombie processes behind."""
    children = []
    start = subprocess.Popen.__init__

    def record(self: subprocess.Popen[bytes], *arguments: Any, **more: Any) -> None:
        children.append(self)
        start(self, *arguments, **more)

    monkeypatch.setattr(subprocess.Popen, "__init__", record)
    await run()
    before = len(os.listdir("/proc/self/fd"))
    await run()
    with pytest.raises(RebalancerError):
        await run("os._exit(7)")
    assert len(os.listdir("/proc/self/fd")) == before
    assert [child.returncode for child in children] == [0, 0, 7]


async def test_environment(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child does not inherit the operator's environment, which may have credentials."""
    monkeypatch.setenv("ETCD_PASSWORD", "secret")
    result = await run("self.context.save(sorted(os.environ))")
    assert result.context is not None
    assert b"PYTHONPATH" in result.context
    assert b"ETCD_PASSWORD" not in result.context


async def test_same_answer_every_time(run: Runner) -> None:
    """Hashes of text are the same in every run, so that two operators agree."""
    runs = [await run("self.context.save([hash('store'), [*{'a', 'b', 'c', 'd'}]])") for _ in range(2)]
    assert runs[0].context == runs[1].context


async def test_orphans_end_themselves(run: Runner) -> None:
    """The child sets an alarm after its time limit, in case its operator is killed."""
    result = await run("self.context.save(signal.alarm(0))", limits=AMPLE)
    assert result.context is not None
    assert AMPLE.seconds / 2 <= int(result.context) <= AMPLE.seconds + 2


async def test_class_names() -> None:
    """UserDefined without a user's class is refused before a process is started."""
    for class_name in (None, "balanced"):
        with pytest.raises(RebalancerError, match=r"class: got .*; allowed: package\.module:Name"):
            await rebalance(TABLE, mode="UserDefined", class_name=class_name, previous=PREVIOUS, stores=STORES)
    with pytest.raises(RebalancerError, match="FullAuto: class: got best; allowed: balanced, rendezvous, mod, pinned"):
        await rebalance(TABLE, class_name="best", previous=PREVIOUS, stores=STORES)


async def test_example_with_config_and_context() -> None:
    """The example places hot partitions on fast stores, and counts its runs."""
    [table] = load_yaml((EXAMPLES / "user-defined.yaml").read_text())
    assert isinstance(table, Table)
    stores = StoresView.of(*(StoreView(name=f"main-{i}") for i in range(5)))
    result = await rebalance(
        table.view(),
        mode=table.spec.rebalancer.mode,
        class_name=table.spec.rebalancer.class_name,
        previous=Assignment.empty(8),
        stores=stores,
        limits=Limits(path=(str(EXAMPLES / "rebalancers"),), seconds=AMPLE.seconds),
    )
    assert result.assignment.stores_of(0) == ("main-0", "main-1", "main-2")
    assert result.assignment.stores_of(3) == ("main-1", "main-2", "main-0")
    assert result.context == b'{"runs":1}'
