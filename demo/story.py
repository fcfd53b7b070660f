"""The steps of the demo: load rows, move replicas, drain and kill stores, and verify every row."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct

from demo.checks import verdicts
from demo.cluster import NAME, DemoCluster
from demo.facts import Facts, Fingerprint, Sample
from demo.load import Load
from demo.report import QUIET, latency_rows, page, picture
from demo.screen import Screen
from demo.spark import Rows, background_spark
from demo.watch import Watch
from evenkeel.cli import local_commands, resource_commands, table_commands
from evenkeel.cli.options import Output
from evenkeel.errors import EvenkeelError

__all__ = ["Size", "run_story"]

TABLE: Final = "orders"
STORES: Final = 6
_YAML: Final = Path(__file__).parent / "orders.yaml"
_TIMEOUT: Final = 180.0
_POLL_SECONDS: Final = 0.2
_BYTES_PER_ROW: Final = 5
"""Copy throttle of a store in bytes per second for each loaded row, so that moves take seconds for any row count."""
_JAVA: Final = "-XX:TieredStopAtLevel=1"
"""Spark runs only for seconds; the optimizing compiler would take half of that time."""
_DRAINED, _KILLED = f"{NAME}-5", f"{NAME}-2"


class Size(Struct, frozen=True):
    """The demo's size."""

    rows: int
    quiet: float
    """Seconds of the baseline without disturbance."""
    wait_for_spread: bool
    """Whether to wait until leaders are evenly spread again: up to half a minute after a store's return."""


def run_story(screen: Screen, size: Size, *, folder: Path, report: Path, began: float) -> bool:
    """Run all steps and write the report; return whether all checks passed."""
    with ExitStack() as stack:
        with screen.step(f"Start etcd, {STORES} stores, each with its raft sidecar, and Spark"):
            spark = stack.enter_context(background_spark(folder / "spark", java=_JAVA))
            up = ("--stores", str(STORES), "--bytes-per-second", str(_BYTES_PER_ROW * size.rows))
            _say(screen, f"evenkeel local up {' '.join(up)}")
            cluster = stack.enter_context(DemoCluster(folder / "cluster", up=up))
            stack.callback(spark.stop)
            endpoints = _make_table(screen, cluster)
            session = spark()
        rows = Rows(session, table=TABLE, endpoints=endpoints, count=size.rows)
        with screen.step(f"Load {size.rows:,} rows with PySpark", progress=rows.progress):
            rows.load()
        watch = stack.enter_context(_watched(cluster, began))
        load = stack.enter_context(Load(endpoints, TABLE, loaded=size.rows, pairs=2, began=began))
        screen.watch(lambda: watch.now, lambda: load.operations)
        drained, end = _disturb(screen, size, cluster, watch)
        load.stop()
        with screen.step("Count and compare all rows with Spark"):
            expected, found, differing = _compare(rows, load)
    tally = load.tally()
    facts = Facts(
        title=f"Evenkeel: {size.rows:,} rows on {STORES} stores, read and written while they move",
        steps=screen.steps,
        samples=watch.samples,
        operations=sorted(load.operations, key=lambda operation: operation.began),
        tally=tally,
        verdicts=verdicts(
            expected=expected, found=found, differing=differing, tally=tally, end=end, drained={_DRAINED: drained}
        ),
    )
    return _conclude(screen, facts, report)


def _make_table(screen: Screen, cluster: DemoCluster) -> list[str]:
    """Apply the YAML; return the table's endpoints."""
    _say(screen, f"evenkeel apply -f {_YAML.name}")
    screen.say(f"    {cluster.command('apply', '-f', str(_YAML)).strip()}")
    cluster.verb(lambda found: resource_commands.wait_for(found, f"table/{TABLE}", "Ready", within=_TIMEOUT))
    return cluster.verb(lambda found: found.endpoints(NAME))


@contextmanager
def _watched(cluster: DemoCluster, began: float) -> Iterator[Watch]:
    watch = Watch(cluster.session, TABLE, stores=STORES, began=began)
    end = cluster.begin(watch.run())
    try:
        yield watch
    finally:
        end()


# Disturbances


def _disturb(screen: Screen, size: Size, cluster: DemoCluster, watch: Watch) -> tuple[int, Sample]:
    """Run the disturbances; return the replicas that a drained store still held, and the final sample."""
    with screen.step(QUIET):
        time.sleep(size.quiet)
    with screen.step("Scale the table from 3 to 5 replicas", disturbs=True):
        _scale(screen, cluster, 5)
        _settle(cluster, watch)
    with screen.step(f"Drain {_DRAINED}", disturbs=True):
        _say(screen, f"evenkeel drain {_DRAINED} --wait")
        cluster.verb(lambda found: table_commands.drain(found, _DRAINED, undo=False, wait=True))
        drained = _settle(cluster, watch).replicas[_DRAINED]
    with screen.step(f"Kill {_KILLED}; it restarts", disturbs=True):
        _kill(screen, cluster, watch)
        _settle(cluster, watch)
    with screen.step(f"Undrain {_DRAINED}, and change the target while replicas are copied", disturbs=True):
        _retarget(screen, cluster, watch)
        end = _settle(cluster, watch, evenly=size.wait_for_spread)
    return drained, end


def _scale(screen: Screen, cluster: DemoCluster, replicas: int) -> None:
    _say(screen, f"evenkeel scale table/{TABLE} --replicas {replicas}")
    cluster.verb(lambda found: resource_commands.scale(found, f"table/{TABLE}", replicas=replicas))


def _kill(screen: Screen, cluster: DemoCluster, watch: Watch) -> None:
    led = cluster.do(watch.sample()).leaders[_KILLED]
    _say(screen, f"evenkeel local kill {_KILLED} --once")
    cluster.verb(lambda found: local_commands.kill(found, _KILLED, Output.TABLE, undo=False, once=True))
    _until(
        lambda: cluster.do(watch.sample()).leaders[_KILLED] < led,
        f"no other store took over the leaderships of {_KILLED}",
    )

    def back() -> bool:
        running = cluster.session.layout.running()
        processes = running.processes.items() if running is not None else ()
        own = [info for name, info in processes if name.split()[0] == _KILLED]
        return len(own) == 2 and all(info.restarts and info.pid for info in own)

    _until(back, f"{_KILLED} did not restart")


def _retarget(screen: Screen, cluster: DemoCluster, watch: Watch) -> None:
    _say(screen, f"evenkeel drain {_DRAINED} --undo")
    cluster.verb(lambda found: table_commands.drain(found, _DRAINED, undo=True, wait=False))

    copied = sum(cluster.do(watch.sample()).copied.values())

    def begun() -> bool:
        sample = cluster.do(watch.sample())
        return bool(sample.replicas[_DRAINED] or sum(sample.copied.values()) > copied)

    _until(begun, f"no replica was copied to {_DRAINED}")
    _scale(screen, cluster, 4)


def _settle(cluster: DemoCluster, watch: Watch, *, evenly: bool = False) -> Sample:
    """Wait until the table is balanced and every partition has a leader, and with `evenly` until leaders are spread."""
    cluster.verb(lambda found: resource_commands.wait_for(found, f"table/{TABLE}", "Balanced", within=_TIMEOUT))
    seen: list[Sample] = []

    def settled() -> bool:
        seen.append(cluster.do(watch.sample()))
        return _settled(seen[-1], evenly=evenly)

    _until(settled, "leaders were not elected or spread evenly")
    return seen[-1]


def _settled(sample: Sample, *, evenly: bool) -> bool:
    counts = [count for store, count in sample.leaders.items() if sample.replicas[store]]
    spread = max(counts) - min(counts)
    return not sample.moving and not sample.leaderless and (spread <= 1 or not evenly)


def _until(holds: Callable[[], bool], problem: str) -> None:
    end = time.monotonic() + _TIMEOUT
    while not holds():
        if time.monotonic() > end:
            raise EvenkeelError(f"{problem} within {_TIMEOUT:g} s")
        time.sleep(_POLL_SECONDS)


# Results


def _compare(rows: Rows, load: Load) -> tuple[Fingerprint, Fingerprint, int]:
    """Return the expected and the found fingerprint, and how many rows differ."""
    unsure = load.unsure()
    expected, found = rows.expected(load.acknowledged(), without=unsure), rows.found(without=unsure)
    one, other = rows.fingerprint(expected), rows.fingerprint(found)
    return one, other, 0 if one == other else rows.differing(expected, found)


def _conclude(screen: Screen, facts: Facts, report: Path) -> bool:
    screen.say("")
    screen.verdicts(facts.verdicts)
    screen.say("")
    screen.table(("latency", "count", "p50", "p99", "max"), list(latency_rows(facts.steps, facts.operations)))
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(page(facts), encoding="utf-8")
    report.with_suffix(".svg").write_text(picture(facts), encoding="utf-8")
    screen.say(f"\nReport: {report}")
    return all(verdict.holds for verdict in facts.verdicts)


def _say(screen: Screen, command: str) -> None:
    screen.say(f"    $ {command}", style="cyan")
