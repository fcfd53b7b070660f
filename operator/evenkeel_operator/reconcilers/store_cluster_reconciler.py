"""StoreClusters: their pods and what goes with these, their end, and a controller for the tables of each.

Looking at one is a list of steps, each of which finds out by itself whether there is anything to do:

    claim       a finalizer, so that nothing of it stays behind
    control     the controller of its tables runs
    children    certificates, Secrets, Services, budget, StatefulSet; pods that leave stay while they hold something
    rollout     a pod that is not as wanted goes, if no other is away
    cordons     stores on nodes that take no more pods lead nothing
    volumes     claims of stores that were emptied and are gone are deleted, the others grow to what is wanted
    tell        its status

and when it is deleted:

    wait        for its tables, for kept data of deleted ones, and while it is paused; stores go on running
    dismiss     the controller, then the pods
    clean       keys in etcd, volumes, Secrets in other namespaces
    release     the finalizer
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterator
from datetime import UTC, datetime
from typing import Final

import msgspec

from evenkeel.controller.dropped_table_reconciler import kept_tables
from evenkeel.controller.error_problems import unavailable_problem
from evenkeel.controller.table_reconciler import cluster_paused, pause_of, released
from evenkeel.errors import (
    ApiForbiddenError,
    CertificateMissingError,
    ClusterMismatchError,
    EvenkeelError,
    FencedError,
    ForeignObjectError,
    InvalidInputError,
    KubernetesError,
    MalformedRecordError,
    MetastoreError,
)
from evenkeel.kube.kube_client import Kube
from evenkeel.kube.object_kinds import (
    NAMESPACE,
    NODE,
    POD,
    STATEFUL_SET,
    STORE_CLUSTER,
    TABLE,
    Object,
    kind_of,
)
from evenkeel.metastore.metastore_api import Delete, KeyValue, Metastore, Txn
from evenkeel.metastore.operator_epoch import FencedMetastore, acquire_epoch
from evenkeel.model.conditions import Reason, timestamp
from evenkeel.model.storecluster import StoreCluster, StoreClusterSpec, StoreClusterStatus
from evenkeel.model.table import Table
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.records import TableRecord, TableState, decode
from evenkeel.reconcile.desired_table import table_key
from evenkeel.reconcile.dropped_tables import kept_for
from evenkeel.reconcile.partition_status import Problem
from evenkeel_operator.identity.authority import token
from evenkeel_operator.identity.metastore_connections import Credentials, Metastores
from evenkeel_operator.identity.store_certificates import CertificateSource, PublishedCertificate, seed_name
from evenkeel_operator.kube.object_applier import Applied, Applier, owned
from evenkeel_operator.kube.object_cache import Cache, Key, key_of
from evenkeel_operator.kube.resource_reader import FINALIZER, Reader
from evenkeel_operator.kube.kube_status_writer import StatusWriter
from evenkeel_operator.manifests import secrets, stateful_set
from evenkeel_operator.manifests.object_names import (
    STORE_CLUSTER_LABEL,
    metadata_of,
    selector_of,
    store_name,
    store_number,
    written_object,
)
from evenkeel_operator.manifests.pod_settings import PodSettings
from evenkeel_operator.reconcilers.client_secrets import ClientSecrets
from evenkeel_operator.reconcilers.cluster_controllers import Controllers
from evenkeel_operator.reconcilers.cordons import EXTEND_SECONDS, Cordons, on_cordoned_nodes
from evenkeel_operator.reconcilers.kube_resources import (
    claim,
    deleted_table,
    release,
    status_document,
    unreadable_cluster,
)
from evenkeel_operator.reconcilers.pod_conditions import PodFacts, pod_problem, ready_pod, with_pod_facts, with_problems
from evenkeel_operator.reconcilers.pod_rollout import next_to_replace, outdated
from evenkeel_operator.reconcilers.surplus_stores import SurplusStores, idle_stores, read_surplus_stores
from evenkeel_operator.reconcilers.volume_claims import Volumes
from evenkeel_operator.reconcilers.store_zones import found_zones, with_zones, zones_from

__all__ = ["StoreClusterReconciler"]

log = logging.getLogger(__name__)

_SOON: Final = 2.0
_REPLACING: Final = 5.0
"""How soon to look again at pods that are to be replaced: nobody tells when their budget allows it."""
_RESYNC: Final = 300.0
_FOREGROUND: Final = "foregroundDeletion"
"""The finalizer by which the garbage collector deletes all children first, however often they are made again."""
_UNREACHABLE_SECONDS: Final = 60.0
"""For so long a StoreCluster that is being deleted waits for an etcd that does not answer, if its pods are gone."""

_Seen = tuple[StoreClusterSpec, dict[str, str], StoreClusterSpec]
"""A spec and zones, and the spec with the zones in it: thousands of stores are not put together for every look."""


class StoreClusterReconciler:
    """Looks at StoreClusters."""

    def __init__(
        self,
        kube: Kube,
        cache: Cache,
        statuses: StatusWriter,
        reader: Reader,
        *,
        settings: PodSettings,
        seed: bytes,
        certificates: CertificateSource,
        metastores: Metastores,
        controllers: Controllers,
        wall_clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._kube = kube
        self._cache = cache
        self._statuses = statuses
        self._reader = reader
        self._settings = settings
        self._seed = seed
        self._certificates = certificates
        self._metastores = metastores
        self._controllers = controllers
        self._wall_clock = wall_clock
        self._applier = Applier(kube, wrote=self._wrote)
        self._clients = ClientSecrets(kube, cache, self._applier)
        self._cordons = Cordons()
        self._volumes = Volumes(kube, cache)
        self._facts: dict[Key, PodFacts] = {}
        self._zones: dict[Key, dict[str, str]] = {}
        self._seen: dict[Key, _Seen] = {}
        self._away_since: dict[Key, datetime] = {}

    async def look(self, key: Key) -> float | None:
        """Bring a StoreCluster to what its user wants, as far as is possible now; when to look again at the latest."""
        subject = self._cache.get(STORE_CLUSTER, *key)
        if subject is None:
            await self._forget(key)
            return None
        try:
            cluster = self._reader.read(StoreCluster, subject)
        except InvalidInputError as error:
            if "deletionTimestamp" in subject["metadata"]:
                return await self._part(unreadable_cluster(subject), subject)
            words = f"{error}; what was asked for before stays in force"
            self._complain(subject, Problem(Reason.SPEC_INVALID, words))
            return None
        if cluster.metadata.deletion_timestamp:
            return await self._part(cluster, subject)
        if FINALIZER not in cluster.metadata.finalizers:
            await claim(self._kube, self._cache, STORE_CLUSTER, subject)
            return 0.0
        return await self._keep(cluster)

    def forget_applied(self) -> None:
        """Apply everything once more: somebody may have changed what is not watched."""
        self._applier.forget()

    # Keeping

    async def _keep(self, cluster: StoreCluster) -> float:
        key = _key(cluster)
        self._find_zones(cluster)
        problems: list[Problem] = []
        again = min([await self._attempt(step(cluster), problems) for step in self._steps(cluster)])
        self._tell(cluster, problems)
        if problems:
            raise EvenkeelError("; ".join(problem.message for problem in problems))
        return again if self._facts[key].ready >= cluster.spec.stores else min(again, 10 * _SOON)

    def _steps(self, cluster: StoreCluster) -> Iterator[Callable[[StoreCluster], Awaitable[float | None]]]:
        yield self._controllers.ensure
        if not cluster_paused(cluster):
            yield from (self._bring_about, self._hand_over, self._volumes.grow)

    async def _attempt(self, step: Awaitable[float | None], problems: list[Problem]) -> float:
        """In how many seconds to look again; what fails keeps no other step from being taken."""
        try:
            return await step or _RESYNC
        except FencedError:
            raise  # who is no longer in charge has nothing to tell
        except KubernetesError as error:
            problems.append(_refusal(error))
        except MetastoreError as error:
            problems.append(unavailable_problem(error))
        except InvalidInputError as error:
            problems.append(Problem(Reason.SPEC_INVALID, str(error)))
        except CertificateMissingError as error:
            problems.append(Problem(Reason.CERTIFICATE_MISSING, str(error)))
        return _RESYNC

    async def _bring_about(self, cluster: StoreCluster) -> float:
        """Apply everything; in how many seconds to look again."""
        access, credentials = await self._metastores.for_pods(cluster)
        live = self._own_set(cluster)
        await self._clients.keep(cluster)
        await self._certificates.check(cluster)
        for wanted in self._certificates.objects(cluster):
            await self._apply(cluster, wanted)
        shown = await self._certificates.shown(cluster)
        for wanted in self._secrets(cluster, credentials, shown):
            await self._apply(cluster, wanted)
        for wanted in (stateful_set.service_account(cluster), stateful_set.service(cluster)):
            await self._apply(cluster, wanted)
        replicas, census = await self._replicas(cluster, live)
        await self._volumes.check(cluster, replicas)
        await self._volumes.own(cluster)
        emptied = census.emptied(replicas) if census is not None else {}
        await self._volumes.mark(cluster, replicas=replicas, emptied=emptied)
        wanted = stateful_set.stateful_set(
            cluster, self._settings, access, replicas=replicas, live=live, revision=shown.revision
        )
        await self._apply(cluster, wanted, live, watched=True)
        idle = self._idle(cluster, replicas)
        await self._apply(cluster, stateful_set.budget(cluster, idle=len(idle)))
        if census is not None:
            pods = {pod["metadata"]["name"] for pod in self._pods(cluster)}
            await self._volumes.delete_emptied(cluster, census, pods=pods)
        if await self._replace(cluster, live, idle):
            return _REPLACING
        return _SOON if replicas > cluster.spec.stores else _RESYNC

    def _secrets(
        self, cluster: StoreCluster, credentials: Credentials, shown: PublishedCertificate
    ) -> Iterator[Object]:
        if credentials:
            yield secrets.metastore_copy(cluster, credentials)
        yield from secrets.client_secrets(
            cluster, token=token(self._seed, seed_name(cluster)), authority=shown.authority
        )

    async def _apply(
        self, cluster: StoreCluster, wanted: Object, live: Object | None = None, *, watched: bool = False
    ) -> None:
        done = await self._applier.apply(wanted, live, watched=watched)
        if done is not Applied.UNCHANGED:
            metadata = wanted["metadata"]
            log.info(
                "%s %s/%s %s", wanted["kind"], metadata["namespace"], metadata["name"], done,
                extra={"store_cluster": cluster.key},
            )  # fmt: skip

    def _wrote(self, subject: Object) -> None:
        """Know of a StatefulSet that is larger now before any watch does, or it would be made smaller unemptied."""
        if kind_of(subject) == STATEFUL_SET:
            self._cache.put(STATEFUL_SET, subject)

    async def _replicas(self, cluster: StoreCluster, live: Object | None) -> tuple[int, SurplusStores | None]:
        """How many pods there have to be; never fewer than may hold something.

        The StatefulSet itself does not count against that: somebody may have scaled it, or deleted it, by hand.
        """
        running = int(live["spec"].get("replicas", 1)) if live is not None else 0
        highest = max(running, self._volumes.highest(cluster))
        marked = max(self._volumes.of(cluster), default=-1) >= cluster.spec.stores
        if highest <= cluster.spec.stores and not marked:
            return cluster.spec.stores, None
        if not self._controllers.following(_key(cluster)):
            # Nobody follows etcd yet, or it is another one, or it is being adopted: until the leaders have published
            # which replicas there are, it says of every store that it may go.
            return max(highest, cluster.spec.stores), None
        try:
            metastore = await self._metastores.of(cluster)
            census = await read_surplus_stores(metastore, cluster, highest)
            enough = census.to_run()
            epoch = await metastore.get(_keys(cluster).epoch)
        except EvenkeelError as error:
            log.warning("%s keeps its %d pods for now: %s", cluster.key, highest, error)
            return max(highest, cluster.spec.stores), None
        # A store that is wanted again since we began may have been given something.
        if not self._newest(cluster) or not self._still_follows(cluster, epoch):
            return max(highest, cluster.spec.stores), None
        return enough, census

    def _still_follows(self, cluster: StoreCluster, epoch: KeyValue | None) -> bool:
        """Whether what was read just now is of the etcd that is followed: one that was emptied has no epoch."""
        key = _key(cluster)
        held = self._controllers.epoch(key)
        ours = held is not None and epoch is not None and epoch.mod_revision == held.mod_revision
        return ours and self._controllers.following(key)

    def _newest(self, cluster: StoreCluster) -> bool:
        subject = self._cache.get(STORE_CLUSTER, *_key(cluster)) or {"metadata": {}}
        return bool(subject["metadata"].get("generation") == cluster.metadata.generation)

    async def _replace(self, cluster: StoreCluster, live: Object | None, idle: Collection[str]) -> bool:
        """Let the next pod go that is not as the StatefulSet wants it; whether there are any."""
        pods = self._pods(cluster)
        pod = next_to_replace(live, pods, idle=idle)
        if pod is not None and await self._kube.evict(pod):
            log.info("pod %s is replaced", pod["metadata"]["name"])
        return bool(outdated(live, pods))

    def _idle(self, cluster: StoreCluster, replicas: int) -> list[str]:
        """Stores whose pods are away, or not ready, and that hold nothing; none while nobody knows what they hold."""
        ready = {pod["metadata"]["name"] for pod in self._pods(cluster) if ready_pod(pod)}
        away = {store_name(cluster, number) for number in range(replicas)} - ready
        known = self._controllers.assignments(_key(cluster)) if away else None
        return idle_stores(away, known) if known is not None else []

    async def _hand_over(self, cluster: StoreCluster) -> float:
        """Let stores on closed nodes lead nothing; in how many seconds to look again."""
        nodes = {node["metadata"]["name"]: node for node in self._cache.all(NODE)}
        closed = on_cordoned_nodes(filter(ready_pod, self._pods(cluster)), nodes)
        if (epoch := self._controllers.epoch(_key(cluster))) is not None:
            metastore = FencedMetastore(await self._metastores.of(cluster), epoch)
            await self._cordons.keep(metastore, _keys(cluster), closed)
        return EXTEND_SECONDS if closed else _RESYNC

    # Telling

    def with_node_zones(self, cluster: StoreCluster) -> StoreCluster:
        """The StoreCluster with the zones of its nodes, as plans are made for it."""
        key = _key(cluster)
        zones = self._zones.setdefault(key, {})
        spec, its_zones, seen = self._seen.get(key, (None, None, None))
        if spec is not cluster.spec or its_zones is not zones or seen is None:
            seen = with_zones(cluster, zones).spec
            self._seen[key] = (cluster.spec, zones, seen)
        return cluster.model_copy(update={"spec": seen})

    def describe(self, cluster: StoreCluster, status: StoreClusterStatus) -> StoreClusterStatus:
        """The controller's status of a StoreCluster, with what is known of its pods."""
        facts = self._facts.get(_key(cluster)) or self._look_at_pods(cluster)
        now = timestamp(self._wall_clock())
        return with_pod_facts(cluster, status, facts, before=self._published(cluster), now=now)

    def _published(self, cluster: StoreCluster) -> StoreClusterStatus | None:
        subject = self._cache.get(STORE_CLUSTER, *_key(cluster))
        return None if subject is None else self._reader.read(StoreCluster, subject).status

    def _tell(self, cluster: StoreCluster, problems: list[Problem]) -> None:
        key = _key(cluster)
        subject = self._cache.get(STORE_CLUSTER, *key)
        if subject is None:
            return
        self._facts[key] = msgspec.structs.replace(self._look_at_pods(cluster), paused=cluster_paused(cluster))
        if problems:
            facts = self._facts[key]
            self._facts[key] = msgspec.structs.replace(facts, problems=(*problems, *facts.problems))
        before = self._published(cluster) or StoreClusterStatus(observed_generation=cluster.metadata.generation)
        status = self.describe(cluster, self._controllers.last_status(key) or before)
        self._statuses.set(subject, status_document(status))

    def _look_at_pods(self, cluster: StoreCluster) -> PodFacts:
        pods = self._pods(cluster)
        problems = [problem for pod in pods if (problem := pod_problem(pod)) is not None]
        unready = [pod["metadata"]["name"] for pod in pods if not ready_pod(pod)]
        return PodFacts(
            selector=",".join(f"{name}={value}" for name, value in selector_of(cluster).items()),
            pods=len(pods),
            ready=len(pods) - len(unready),
            zones_from=zones_from(cluster, self._zones.get(_key(cluster), {})),
            waiting=f"not ready: {', '.join(unready[:5])}" if unready else "",
            outdated=len(outdated(self._own_set(cluster), pods)),
            problems=tuple(problems[:3]),
        )

    def _find_zones(self, cluster: StoreCluster) -> None:
        key = _key(cluster)
        nodes = {node["metadata"]["name"]: node for node in self._cache.all(NODE)}
        zones = {**self._zones.get(key, {}), **found_zones(cluster, self._pods(cluster), nodes)}
        if zones != self._zones.get(key):
            self._zones[key] = zones
            self._controllers.hear(key)

    def _complain(self, subject: Object, problem: Problem) -> None:
        generation, now = subject["metadata"].get("generation", 0), timestamp(self._wall_clock())
        status = with_problems(self._statuses.of(subject), [problem], generation=generation, now=now)
        self._statuses.set(subject, status)

    def _pods(self, cluster: StoreCluster) -> list[Object]:
        """The pods of its stores; a pod of others may have the same labels, but not the same name."""
        found = _labelled(self._cache.all(POD, cluster.metadata.namespace), cluster)
        return [pod for pod in found if store_number(cluster, pod["metadata"]["name"]) is not None]

    # Parting

    async def _forget(self, key: Key) -> None:
        await self._controllers.dismiss(key)
        await self._cordons.end(Keys(namespace=key[0], store_cluster=key[1]))
        for known in (self._facts, self._zones, self._seen, self._away_since):
            known.pop(key, None)

    async def _part(self, cluster: StoreCluster, subject: Object) -> float | None:
        """Go on with the end of a StoreCluster; the watches tell when there is more to do."""
        if FINALIZER not in cluster.metadata.finalizers:
            return None
        if await self._has_tables(cluster, subject) or await self._keeps_data(cluster, subject):
            return 10 * _SOON
        await self._controllers.dismiss(_key(cluster))
        if await self._held_by_pause(cluster):
            words = "its deletion waits because it is paused: resume it to have its pods, volumes and keys deleted"
            self._complain(subject, Problem(Reason.PAUSED, words))
            return 10 * _SOON
        name = cluster.metadata.name
        if self._own_set(cluster) is not None or self._pods(cluster):
            await self._applier.delete(written_object(STATEFUL_SET, metadata_of(cluster, name)))
            if not released(cluster):
                return _SOON
        if not await self._clean(cluster) and not released(cluster):
            return _SOON
        await self._volumes.delete_all(cluster)
        await self._clients.delete(cluster)
        await self._certificates.clean(cluster)
        await release(self._kube, self._cache, STORE_CLUSTER, _key(cluster))
        log.info("StoreCluster %s is gone", cluster.key)
        return None

    async def _held_by_pause(self, cluster: StoreCluster) -> bool:
        """Whether nothing may be deleted now. The end of a namespace is not held up: it takes all volumes anyway."""
        return cluster_paused(cluster) and not released(cluster) and not await self._namespace_ends(cluster)

    async def _keeps_data(self, cluster: StoreCluster, subject: Object) -> bool:
        """Whether data of deleted tables is kept; released StoreClusters and the end of a namespace do not wait."""
        if released(cluster):
            return False
        kept = await self._kept(cluster, subject)
        if not kept or await self._namespace_ends(cluster):
            return False
        await self._ensure_controller(cluster)
        named = ", ".join(f"{name} until {until or 'it is purged'}" for name, until in sorted(kept.items())[:5])
        words = (
            f"data of deleted tables is kept: {named}; `kubectl evenkeel undelete` restores and `kubectl evenkeel "
            f"purge` removes it, `kubectl evenkeel release storecluster/{cluster.metadata.name}` deletes everything now"
        )
        if not self._controllers.following(_key(cluster)):
            words += "; this is what the status says: the etcd that was followed does not confirm it now"
        reason = Reason.TABLES_REMAIN
        if cluster_paused(cluster):
            reason, words = Reason.PAUSED, f"its deletion waits because it is paused: resume it; {words}"
        await self._stay(cluster, subject, Problem(reason, words))
        return True

    async def _kept(self, cluster: StoreCluster, subject: Object) -> dict[str, str]:
        """By table, until when its data is kept; empty where it is until it is purged.

        The status counts too: etcd may not answer, or be another one, which knows of nothing that was kept.
        """
        statuses = (subject.get("status") or {}, self._statuses.of(subject))
        listed = [found for status in statuses for found in status.get("dropped", ())]
        kept = {f"{found['table']}.{found['uid']}": str(found.get("keptUntil") or "") for found in listed}
        try:
            records = await kept_tables(await self._metastores.of(cluster), _keys(cluster))
        except (MetastoreError, InvalidInputError) as error:
            log.warning("which data of %s is kept is known by its status alone: %s", cluster.key, error)
            records = []
        for key, record in records:
            until = record.dropped.until if record.dropped is not None else None
            kept[key] = timestamp(datetime.fromtimestamp(until, UTC)) if until is not None else ""
        return kept

    async def _stay(self, cluster: StoreCluster, subject: Object, problem: Problem) -> None:
        """Say what the deletion waits for, and keep the stores running: data that is kept can be restored."""
        try:
            self._reader.read(StoreCluster, subject)
        except InvalidInputError:
            self._complain(subject, problem)
            return
        problems = [problem]
        held = cluster_paused(cluster) or _FOREGROUND in cluster.metadata.finalizers
        if not held and not await self._namespace_ends(cluster):
            await self._attempt(self._bring_about(cluster), problems)
        self._tell(cluster, problems)

    async def _ensure_controller(self, cluster: StoreCluster) -> None:
        """Have a controller where etcd can be reached; where it cannot, the deletion goes on as far as it may."""
        try:
            await self._controllers.ensure(cluster)
        except InvalidInputError as error:
            log.warning("%s has no controller: %s", cluster.key, error)

    async def _namespace_ends(self, cluster: StoreCluster) -> bool:
        try:
            found = await self._kube.get(NAMESPACE, cluster.metadata.namespace)
        except ApiForbiddenError as error:
            log.warning("whether the namespace %s is being deleted is not known: %s", cluster.metadata.namespace, error)
            return False
        return found is None or "deletionTimestamp" in found["metadata"]

    async def _has_tables(self, cluster: StoreCluster, subject: Object) -> bool:
        """Whether tables are left. Stores confirm drops, so where pods were taken away first nobody waits for that."""
        owned = self._cache.owned(TABLE, cluster.metadata.namespace, cluster.metadata.name)
        tables = [table for table in owned if FINALIZER in table["metadata"].get("finalizers", ())]
        if not tables:
            return False
        await self._ensure_controller(cluster)
        if wanted := [table for table in tables if "deletionTimestamp" not in table["metadata"]]:
            names = ", ".join(table["metadata"]["name"] for table in wanted[:5])
            words = f"the StoreCluster goes when its tables have gone: delete {names}"
            await self._stay(cluster, subject, Problem(Reason.TABLES_REMAIN, words))
            return True
        live = self._own_set(cluster)
        if live is None or "deletionTimestamp" in live["metadata"] or released(cluster):
            for table in tables:
                if await self._has_nothing_to_keep(cluster, deleted_table(self._reader, table)):
                    await release(self._kube, self._cache, TABLE, key_of(table))
        return True

    async def _has_nothing_to_keep(self, cluster: StoreCluster, table: Table) -> bool:
        """Whether a deleted Table may go without its stores. Where data is to be kept, the controller notes it first.

        That takes etcd alone: without the one that was followed nothing can be noted, and the Table waits.
        """
        if released(cluster) or await self._namespace_ends(cluster):
            return True
        if kept_for(table.spec, now=0.0).until == 0.0 and not pause_of(table, cluster):
            return True
        if not self._controllers.following(_key(cluster)):
            return False
        try:
            metastore, keys = await self._metastores.of(cluster), _keys(cluster)
            ready, epoch = await _is_ready(metastore, keys, table), await metastore.get(keys.epoch)
        except (MetastoreError, InvalidInputError, MalformedRecordError) as error:
            log.warning("Table %s waits, because its data may have to be kept: %s", table.key, error)
            return False
        return not ready and self._still_follows(cluster, epoch)

    async def _clean(self, cluster: StoreCluster) -> bool:
        """Remove all keys of a StoreCluster whose stores are gone; False where that has to wait."""
        key, keys, now = _key(cluster), _keys(cluster), self._wall_clock()
        try:
            metastore = await self._metastores.of(cluster)
            await self._check_followed(cluster, metastore)
            epoch = await acquire_epoch(metastore, keys.epoch, "cleaning")
            await metastore.txn(Txn((epoch.compare,), (Delete(keys.root, prefix=True),)))
        except (MetastoreError, InvalidInputError) as error:
            since = self._away_since.setdefault(key, now)
            if (now - since).total_seconds() < _UNREACHABLE_SECONDS:
                return False
            log.warning("StoreCluster %s goes, though its keys in etcd may stay: %s", cluster.key, error)
        return True

    async def _check_followed(self, cluster: StoreCluster, metastore: Metastore) -> None:
        """ClusterMismatchError where another etcd answers: its keys of the same name may be somebody else's."""
        status = (self._cache.get(STORE_CLUSTER, *_key(cluster)) or {}).get("status") or {}
        followed = (status.get("metastore") or {}).get("clusterId", "")
        answers = f"{await metastore.cluster_id():x}"
        if followed not in ("", answers):
            raise ClusterMismatchError(f"etcd cluster {answers} answers, but {followed} was followed")

    def _own_set(self, cluster: StoreCluster) -> Object | None:
        """The StatefulSet, unless it belongs to somebody else, such as a StoreCluster of that name that was deleted."""
        name, namespace = cluster.metadata.name, cluster.metadata.namespace
        found = self._cache.get(STATEFUL_SET, namespace, name)
        return found if found is not None and owned(found, {"metadata": metadata_of(cluster, name)}) else None


def _key(cluster: StoreCluster) -> Key:
    return cluster.metadata.namespace, cluster.metadata.name


def _keys(cluster: StoreCluster) -> Keys:
    return Keys(namespace=cluster.metadata.namespace, store_cluster=cluster.metadata.name)


async def _is_ready(metastore: Metastore, keys: Keys, table: Table) -> bool:
    """Whether the metastore has a record of a table that has data; none of one that is being created or dropped."""
    restored = await metastore.get(keys.restored(table_key(table)))
    key = table_key(table) if restored is None else decode(str, restored.value, key=restored.key)
    record = await metastore.get(keys.table(key))
    return record is not None and decode(TableRecord, record.value, key=record.key).state is TableState.READY


def _labelled(subjects: Iterator[Object], cluster: StoreCluster) -> list[Object]:
    name = cluster.metadata.name
    return [one for one in subjects if one["metadata"].get("labels", {}).get(STORE_CLUSTER_LABEL) == name]


def _refusal(error: KubernetesError) -> Problem:
    if isinstance(error, ForeignObjectError):
        return Problem(Reason.FOREIGN_OBJECT, str(error))
    if isinstance(error, ApiForbiddenError):
        return Problem(Reason.FORBIDDEN, f"the operator lacks a permission: {error}")
    return Problem(Reason.API_REFUSED, str(error))
