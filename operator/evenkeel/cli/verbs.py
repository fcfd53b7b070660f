"""The verbs on resources, the same in local mode and, as `kubectl evenkeel`, on Kubernetes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.text import Text

from evenkeel.cli.kinds import HEADS, kind_of, row_of, split_name
from evenkeel.cli.printing import Output, columns, console, print_json, print_table
from evenkeel.cli.session import Session
from evenkeel.cli.validate import Checked
from evenkeel.driver import drive
from evenkeel.errors import InvalidInputError
from evenkeel.metastore.epoch import Epoch
from evenkeel.model.loading import Resource
from evenkeel.model.partitionassignment import PartitionAssignment, PartitionStatus
from evenkeel.model.storecluster import StoreCluster
from evenkeel.model.table import Table
from evenkeel.protocol.records import StoreRecord, decode
from evenkeel.reconcile.planning import Preview, preview_table
from evenkeel.reconcile.stores import DRAIN_ANNOTATION
from evenkeel.reconcile.wish import table_key, wish_of

__all__ = ["apply", "delete", "drain", "endpoints", "get", "partitions", "plan", "scale", "wait_for"]

_REFRESH_SECONDS = 0.5


async def apply(session: Session, checked: Checked, output: Output) -> None:
    """Make resources what the files say: StoreClusters first, for tables need them."""
    done = []
    ordered = sorted(checked.resources, key=lambda found: not isinstance(found[2], StoreCluster))
    for _, _, resource in ordered:
        outcome = await session.resources.apply(resource)
        done.append({"kind": resource.kind, "name": resource.metadata.name, "result": outcome.value})
        if output is Output.TABLE:
            console().print(f"{resource.kind.lower()}.evenkeel.dev/{resource.metadata.name} {outcome.value}")
    if output is Output.JSON:
        print_json(done)


async def get(session: Session, what: str, name: str, output: Output, *, watch: bool) -> None:
    """List resources of a kind, or show one."""
    if not name and "/" in what:
        kind, name = split_name(what)
    else:
        kind = kind_of(what)

    async def look() -> list[Resource]:
        found: list[Resource] = list(await session.resources.all_of(kind))
        found = [resource for resource in found if not name or resource.metadata.name == name]
        if name and not found:
            raise InvalidInputError(f"{kind.__name__} {name}: there is none")
        return found

    async def show() -> tuple[Sequence[str], list[Sequence[object]]]:
        return HEADS[kind], [row_of(resource) for resource in await look()]

    if output is Output.JSON:
        documents = [resource.document() for resource in await look()]
        print_json(documents[0] if name else documents)
    else:
        await _show(show, watch=watch)


async def delete(session: Session, what: str, name: str, *, wait: bool) -> None:
    """Delete a resource; a table goes when no store holds anything of it."""
    kind, name = (kind_of(what), name) if name else split_name(what)
    await session.resources.delete(kind, name)
    console().print(f"{kind.__name__.lower()}.evenkeel.dev/{name} deleted")
    while wait and await session.resources.get(kind, name) is not None:  # noqa: ASYNC110 - another process removes it
        await asyncio.sleep(_REFRESH_SECONDS)


async def scale(session: Session, what: str, *, replicas: int) -> None:
    """Another number of replicas for a table, or of stores for a StoreCluster."""
    kind, name = split_name(what)
    field = {Table: "replicas", StoreCluster: "stores"}.get(kind)
    if field is None:
        raise InvalidInputError(f"{what}: only tables and storeclusters can be scaled")

    def edit(document: dict[str, Any]) -> None:
        document["spec"][field] = replicas
        size = document["spec"].get("consensusSize")
        if kind is Table and size is not None and size > replicas:
            raise InvalidInputError(
                f"table {name}: replicas: got {replicas}; allowed: at least {size}, its consensusSize; lower that first"
            )

    await session.resources.change(kind, name, edit)
    console().print(f"{kind.__name__.lower()}.evenkeel.dev/{name} scaled")


async def drain(session: Session, store: str, *, undo: bool) -> None:
    """Empty a store, or let it take replicas again."""
    cluster, _, ordinal = store.rpartition("-")
    if not cluster or not ordinal.isdecimal():
        raise InvalidInputError(f"store: got {store!r}; allowed: a name like main-2, <storecluster>-<ordinal>")

    def edit(document: dict[str, Any]) -> None:
        annotations = document["metadata"].setdefault("annotations", {})
        names = {name for name in annotations.get(DRAIN_ANNOTATION, "").split(",") if name}
        names = names - {store} if undo else names | {store}
        annotations[DRAIN_ANNOTATION] = ",".join(sorted(names))

    await session.resources.change(StoreCluster, cluster, edit)
    console().print(f"store {store} {'takes replicas again' if undo else 'is being emptied'}")


async def plan(session: Session, what: str, *, replicas: int | None, output: Output) -> None:
    """What would move, and why; changes nothing."""
    _, name = split_name(what)
    table = await session.resources.get(Table, name)
    if table is None:
        raise InvalidInputError(f"table {name}: there is none")
    spec = table.spec if replicas is None else table.spec.model_copy(update={"replicas": replicas})
    wanted = table.model_copy(update={"spec": type(spec).model_validate(spec.model_dump())})
    owned = [found for found in await session.resources.all_of(PartitionAssignment) if found.spec.table == name]
    requests = preview_table(
        wish_of(wanted, owned), keys=session.keys(table.spec.store_cluster), table=table_key(table)
    )
    preview = await drive(requests, metastore=session.metastore, epoch=Epoch("", "preview", 0))
    _print_plan(preview, output)


def _print_plan(preview: Preview, output: Output) -> None:
    moves = [
        {"partition": move.partition, "from": move.source, "to": move.target, "reason": move.reason}
        for move in preview.moves
    ]
    if output is Output.JSON:
        print_json({"number": preview.plan.n, "hash": preview.plan.head.hash, "moves": moves})
        return
    if not moves:
        console().print("nothing would move")
        return
    print_table(
        ("PARTITION", "FROM", "TO", "REASON"),
        [(move["partition"], move["from"] or "-", move["to"] or "-", move["reason"]) for move in moves],
    )
    console().print(f"plan {preview.plan.n}, {len(moves)} moves, hash {preview.plan.head.hash}; nothing was changed")


async def partitions(session: Session, name: str, output: Output, *, watch: bool) -> None:
    """Where each partition is, who leads it, and how far its change is."""
    table = await session.resources.get(Table, name)
    if table is None:
        raise InvalidInputError(f"table {name}: there is none")

    async def look() -> list[PartitionStatus]:
        found = await session.resources.all_of(PartitionAssignment)
        slices = sorted((f for f in found if f.spec.table == name), key=lambda f: f.spec.from_)
        return [status for piece in slices if piece.status for status in piece.status.partitions]

    async def show() -> tuple[Sequence[str], list[Sequence[object]]]:
        head = ("PARTITION", "LEADER", "STAGE", "STABLE", "PENDING", "PLANNED", "PROGRESS", "REASON")
        return head, [_partition_row(status) for status in await look()]

    if output is Output.JSON:
        print_json([status.model_dump(mode="json", by_alias=True) for status in await look()])
    else:
        await _show(show, watch=watch)


def _partition_row(status: PartitionStatus) -> Sequence[object]:
    def peers(found: Sequence[Any]) -> str:
        return ",".join(peer.store + ("*" if peer.role == "Learner" else "") for peer in found) or "-"

    pending = " > ".join(peers(step) for step in status.pending) or "-"
    progress = f"{status.progress}%" if status.pending else "-"
    leader = status.leader or "-"
    stable, planned = peers(status.stable), peers(status.planned)
    return (status.partition, leader, status.stage, stable, pending, planned, progress, status.reason or "-")


async def endpoints(session: Session, cluster: str) -> list[str]:
    """Where the stores of a StoreCluster answer clients."""
    keys = session.keys(cluster)
    found = await session.metastore.range(keys.stores())
    addresses = [decode(StoreRecord, kv.value, key=kv.key).flight for kv in found.kvs]
    known = [address for address in addresses if address]
    if not known:
        raise InvalidInputError(f"StoreCluster {cluster}: no store of it answers clients; see `evenkeel local status`")
    return known


async def wait_for(session: Session, what: str, condition: str, *, within: float) -> None:
    """Wait until a condition of a resource holds for its newest spec."""
    kind, name = split_name(what)
    try:
        async with asyncio.timeout(within):
            while not await _holds(session, kind, name, condition):  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise InvalidInputError(f"{what}: {condition} does not hold after {within:g} s") from None


async def _holds(session: Session, kind: type[Resource], name: str, condition: str) -> bool:
    found = await session.resources.get(kind, name)
    if found is None:
        raise InvalidInputError(f"{kind.__name__} {name}: there is none")
    status: Any = found.status
    if status is None or status.observed_generation < found.metadata.generation:
        return False
    return any(entry.type == condition and entry.status == "True" for entry in status.conditions)


async def _show(show: Callable[[], Awaitable[tuple[Sequence[str], list[Sequence[object]]]]], *, watch: bool) -> None:
    """Print once; or keep a table up to date in a terminal, or print it again on every change in a pipe."""
    head, rows = await show()
    screen = console()
    if not watch:
        if rows:
            print_table(head, rows)
        else:
            screen.print("nothing found")
        return
    if not screen.is_terminal:
        await _show_changes(show, head, rows)
        return
    with Live(console=screen, auto_refresh=False) as live:
        while True:
            head, rows = await show()
            live.update(Group(columns(head, rows), Text("Ctrl-C ends", style="dim")), refresh=True)
            await asyncio.sleep(_REFRESH_SECONDS)


async def _show_changes(
    show: Callable[[], Awaitable[tuple[Sequence[str], list[Sequence[object]]]]],
    head: Sequence[str],
    rows: list[Sequence[object]],
) -> None:
    print_table(head, rows)
    shown = [list(map(str, row))[:-1] for row in rows]
    while True:
        await asyncio.sleep(_REFRESH_SECONDS)
        _, rows = await show()
        now = [list(map(str, row))[:-1] for row in rows]
        if now != shown:
            print_table(head, rows)
            shown = now
