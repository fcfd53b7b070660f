"""StoreClusters: their pods and what goes with these, their end, and a controller for the tables of each.

Looking at one is a list of steps, each of which finds out by itself whether there is anything to do:

    claim       a finalizer, so that nothing of it stays behind
    control     the controller of its tables runs
    children    certificates, Secrets, Services, budget, StatefulSet; pods that leave stay while they hold something
    rollout     a pod that is not as wanted goes, if no other is away
    cordons     stores on nodes that take no more pods lead nothing
    volumes     claims grow to what is wanted
    tell        its status

and when it is deleted:

    wait        for its tables, which go first
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

from evenkeel.controller.tables import PAUSED_ANNOTATION, released
from evenkeel.errors import (
    ApiForbiddenError,
    CertificateMissingError,
    EvenkeelError,
    FencedError,
    InvalidInputError,
    KubernetesError,
    MetastoreError,
)
from evenkeel.kube.client import Kube
from evenkeel.kube.kinds import (
    NODE,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    SECRET,
    STATEFUL_SET,
    STORE_CLUSTER,
    TABLE,
    Object,
    kind_of,
)
from evenkeel.metastore.api import Delete, Txn
from evenkeel.metastore.epoch import FencedMetastore, acquire_epoch
from evenkeel.model.conditions import Reason, timestamp
from evenkeel.model.quantities import Quantity
from evenkeel.model.storecluster import StoreCluster, StoreClusterSpec, StoreClusterStatus
from evenkeel.protocol.keys import Keys
from evenkeel.reconcile.partitions import Trouble
from evenkeel_operator.authority import token
from evenkeel_operator.cache import Cache, Key, key_of
from evenkeel_operator.certificates import CertificateSource, Shown, seed_name
from evenkeel_operator.conditions import PodFacts, described, pod_problem, ready_pod, troubled
from evenkeel_operator.controllers import Controllers
from evenkeel_operator.cordons import EXTEND_SECONDS, Cordons, on_closed_nodes
from evenkeel_operator.kube.apply import Applied, Applier
from evenkeel_operator.manifests import secrets, stores
from evenkeel_operator.manifests.names import STORE_CLUSTER_LABEL, client_secret, selector_of, store_name
from evenkeel_operator.manifests.pod import CLAIM
from evenkeel_operator.manifests.settings import PodSettings
from evenkeel_operator.metastores import Credentials, Metastores
from evenkeel_operator.reading import FINALIZER, Reader
from evenkeel_operator.resources import claim, release, status_document, unreadable_cluster
from evenkeel_operator.rollout import next_to_replace, outdated
from evenkeel_operator.scaling import idle_stores, stores_to_run
from evenkeel_operator.statuses import Statuses
from evenkeel_operator.zones import found_zones, with_zones, zones_from

__all__ = ["CLIENTS_ANNOTATION", "ClusterKeeper"]

log = logging.getLogger(__name__)

CLIENTS_ANNOTATION: Final = "evenkeel.dev/client-namespaces"
"""Where a StoreCluster's client Secret was put: Secrets are never listed, so this is how they are found again."""

_SOON: Final = 2.0
_REPLACING: Final = 5.0
"""How soon to look again at pods that are to be replaced: nobody tells when their budget allows it."""
_RESYNC: Final = 300.0
_UNREACHABLE_SECONDS: Final = 60.0
"""For so long a StoreCluster that is being deleted waits for an etcd that does not answer, if its pods are gone."""

_Seen = tuple[StoreClusterSpec, dict[str, str], StoreClusterSpec]
"""A spec and zones, and the spec with the zones in it: thousands of stores are not put together for every look."""


class ClusterKeeper:
    """Looks at StoreClusters."""

    def __init__(
        self,
        kube: Kube,
        cache: Cache,
        statuses: Statuses,
        reader: Reader,
        *,
        settings: PodSettings,
        seed: bytes,
        certificates: CertificateSource,
        metastores: Metastores,
        controllers: Controllers,
        today: Callable[[], datetime] = lambda: datetime.now(UTC),
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
        self._today = today
        self._applier = Applier(kube, wrote=self._wrote)
        self._cordons = Cordons()
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
            self._complain(subject, Trouble(Reason.SPEC_INVALID, words))
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
        troubles: list[Trouble] = []
        again = min([await self._attempt(step(cluster), troubles) for step in self._steps(cluster)])
        self._tell(cluster, troubles)
        if troubles:
            raise EvenkeelError("; ".join(trouble.message for trouble in troubles))
        return again if self._facts[key].ready >= cluster.spec.stores else min(again, 10 * _SOON)

    def _steps(self, cluster: StoreCluster) -> Iterator[Callable[[StoreCluster], Awaitable[float | None]]]:
        yield self._controllers.ensure
        if not _paused(cluster):
            yield from (self._bring_about, self._hand_over, self._grow)

    async def _attempt(self, step: Awaitable[float | None], troubles: list[Trouble]) -> float:
        """In how many seconds to look again; what fails keeps no other step from being taken."""
        try:
            return await step or _RESYNC
        except FencedError:
            raise  # who is no longer in charge has nothing to tell
        except KubernetesError as error:
            troubles.append(_refusal(error))
        except MetastoreError as error:
            troubles.append(Trouble(Reason.METASTORE_UNREACHABLE, str(error)))
        except InvalidInputError as error:
            troubles.append(Trouble(Reason.SPEC_INVALID, str(error)))
        except CertificateMissingError as error:
            troubles.append(Trouble(Reason.CERTIFICATE_MISSING, str(error)))
        return _RESYNC

    async def _bring_about(self, cluster: StoreCluster) -> float:
        """Apply everything; in how many seconds to look again."""
        access, credentials = await self._metastores.for_pods(cluster)
        live = self._cache.get(STATEFUL_SET, cluster.metadata.namespace, cluster.metadata.name)
        _check_owner(cluster, live)
        await self._remember_clients(cluster)
        for wanted in self._certificates.objects(cluster):
            await self._apply(cluster, wanted)
        shown = await self._certificates.shown(cluster)
        for wanted in self._secrets(cluster, credentials, shown):
            await self._apply(cluster, wanted)
        for wanted in (stores.service_account(cluster), stores.service(cluster)):
            await self._apply(cluster, wanted)
        replicas = await self._replicas(cluster, live)
        wanted = stores.stateful_set(
            cluster, self._settings, access, replicas=replicas, live=live, revision=shown.revision
        )
        await self._apply(cluster, wanted, live)
        idle = self._idle(cluster, replicas)
        await self._apply(cluster, stores.budget(cluster, idle=len(idle)))
        if await self._replace(cluster, live, idle):
            return _REPLACING
        return _SOON if replicas > cluster.spec.stores else _RESYNC

    def _secrets(self, cluster: StoreCluster, credentials: Credentials, shown: Shown) -> Iterator[Object]:
        if credentials:
            yield secrets.metastore_copy(cluster, credentials)
        yield from secrets.client_secrets(
            cluster, token=token(self._seed, seed_name(cluster)), authority=shown.authority
        )

    async def _apply(self, cluster: StoreCluster, wanted: Object, live: Object | None = None) -> None:
        done = await self._applier.apply(wanted, live)
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

    async def _replicas(self, cluster: StoreCluster, live: Object | None) -> int:
        """How many pods there have to be; never fewer than are there while nobody knows what they hold."""
        running = live["spec"].get("replicas", 1) if live is not None else 0
        if running <= cluster.spec.stores:
            return cluster.spec.stores
        metastore, keys = await self._metastores.of(cluster), _keys(cluster)
        try:
            known = await metastore.range(keys.all_stores())
            named = await metastore.range(keys.assignments())
            enough = stores_to_run(cluster, running, stores=known.kvs, assignments=named.kvs, keys=keys)
        except EvenkeelError as error:
            log.warning("%s keeps its %d pods for now: %s", cluster.key, running, error)
            return int(running)
        # A store that is wanted again since we began may have been given something.
        return enough if self._newest(cluster) else int(running)

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
        closed = on_closed_nodes(filter(ready_pod, self._pods(cluster)), nodes)
        if (epoch := self._controllers.epoch(_key(cluster))) is not None:
            metastore = FencedMetastore(await self._metastores.of(cluster), epoch)
            await self._cordons.keep(metastore, _keys(cluster), closed)
        return EXTEND_SECONDS if closed else _RESYNC

    async def _remember_clients(self, cluster: StoreCluster) -> None:
        """Write down which namespaces get a Secret, and take it from those that shall have none any more."""
        metadata = cluster.metadata
        wanted = sorted(set(cluster.spec.client_namespaces) - {metadata.namespace})
        written = _client_namespaces(cluster)
        for namespace in sorted(set(written) - set(wanted)):
            await self._kube.delete(SECRET, client_secret(cluster), namespace)
        if wanted != written:
            value = ",".join(wanted) or None
            patch = {"metadata": {"annotations": {CLIENTS_ANNOTATION: value}}}
            after = await self._kube.merge(STORE_CLUSTER, metadata.name, metadata.namespace, patch)
            self._cache.put(STORE_CLUSTER, after)

    async def _grow(self, cluster: StoreCluster) -> None:
        """Ask for larger volumes where larger ones are wanted; a StatefulSet cannot do it by itself."""
        wanted = cluster.spec.storage.size
        for found in self._claims(cluster):
            asked = found["spec"].get("resources", {}).get("requests", {}).get("storage", "0")
            if Quantity(str(asked)).value < wanted.value:
                name, namespace = found["metadata"]["name"], found["metadata"]["namespace"]
                patch = {"spec": {"resources": {"requests": {"storage": str(wanted)}}}}
                self._cache.put(
                    PERSISTENT_VOLUME_CLAIM, await self._kube.merge(PERSISTENT_VOLUME_CLAIM, name, namespace, patch)
                )
                log.info("volume %s/%s grows from %s to %s", namespace, name, asked, wanted)

    # Telling

    def seen_as(self, cluster: StoreCluster) -> StoreCluster:
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
        now = timestamp(self._today())
        return described(cluster, status, facts, before=self._published(cluster), now=now)

    def _published(self, cluster: StoreCluster) -> StoreClusterStatus | None:
        subject = self._cache.get(STORE_CLUSTER, *_key(cluster))
        return None if subject is None else self._reader.read(StoreCluster, subject).status

    def _tell(self, cluster: StoreCluster, troubles: list[Trouble]) -> None:
        key = _key(cluster)
        subject = self._cache.get(STORE_CLUSTER, *key)
        if subject is None:
            return
        self._facts[key] = msgspec.structs.replace(self._look_at_pods(cluster), paused=_paused(cluster))
        if troubles:
            facts = self._facts[key]
            self._facts[key] = msgspec.structs.replace(facts, troubles=(*troubles, *facts.troubles))
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
            troubles=tuple(problems[:3]),
        )

    def _find_zones(self, cluster: StoreCluster) -> None:
        key = _key(cluster)
        nodes = {node["metadata"]["name"]: node for node in self._cache.all(NODE)}
        zones = {**self._zones.get(key, {}), **found_zones(cluster, self._pods(cluster), nodes)}
        if zones != self._zones.get(key):
            self._zones[key] = zones
            self._controllers.hear(key)

    def _complain(self, subject: Object, trouble: Trouble) -> None:
        generation, now = subject["metadata"].get("generation", 0), timestamp(self._today())
        status = troubled(self._statuses.of(subject), [trouble], generation=generation, now=now)
        self._statuses.set(subject, status)

    def _pods(self, cluster: StoreCluster) -> list[Object]:
        return _labelled(self._cache.all(POD, cluster.metadata.namespace), cluster)

    def _claims(self, cluster: StoreCluster) -> list[Object]:
        found = _labelled(self._cache.all(PERSISTENT_VOLUME_CLAIM, cluster.metadata.namespace), cluster)
        return [one for one in found if one["metadata"]["name"].startswith(f"{CLAIM}-{cluster.metadata.name}-")]

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
        if await self._has_tables(cluster, subject):
            return 10 * _SOON
        await self._controllers.dismiss(_key(cluster))
        name, namespace = cluster.metadata.name, cluster.metadata.namespace
        if self._own_set(cluster) is not None or self._pods(cluster):
            await self._kube.delete(STATEFUL_SET, name, namespace)
            if not released(cluster):
                return _SOON
        if not await self._clean(cluster) and not released(cluster):
            return _SOON
        for found in self._claims(cluster):
            await self._kube.delete(PERSISTENT_VOLUME_CLAIM, found["metadata"]["name"], namespace)
        for elsewhere in _client_namespaces(cluster):
            await self._kube.delete(SECRET, client_secret(cluster), elsewhere)
        await self._certificates.clean(cluster)
        await release(self._kube, self._cache, STORE_CLUSTER, _key(cluster))
        log.info("StoreCluster %s is gone", cluster.key)
        return None

    async def _has_tables(self, cluster: StoreCluster, subject: Object) -> bool:
        """Whether tables are left. They are dropped by stores, so where pods were taken away first nobody waits."""
        owned = self._cache.owned(TABLE, cluster.metadata.namespace, cluster.metadata.name)
        tables = [table for table in owned if FINALIZER in table["metadata"].get("finalizers", ())]
        wanted = [table for table in tables if "deletionTimestamp" not in table["metadata"]]
        if wanted:
            names = ", ".join(table["metadata"]["name"] for table in wanted[:5])
            words = f"the StoreCluster goes when its tables have gone: delete {names}"
            self._complain(subject, Trouble(Reason.TABLES_REMAIN, words))
        live = self._own_set(cluster)
        nobody = live is None or "deletionTimestamp" in live["metadata"] or released(cluster)
        if tables and not wanted and nobody:
            for table in tables:
                await release(self._kube, self._cache, TABLE, key_of(table))
        elif tables and not wanted:
            await self._controllers.ensure(cluster)
        return bool(tables)

    async def _clean(self, cluster: StoreCluster) -> bool:
        """Remove all keys of a StoreCluster whose stores are gone; False where that has to wait."""
        key, keys, now = _key(cluster), _keys(cluster), self._today()
        try:
            metastore = await self._metastores.of(cluster)
            epoch = await acquire_epoch(metastore, keys.epoch, "cleaning")
            await metastore.txn(Txn((epoch.compare,), (Delete(keys.root, prefix=True),)))
        except (MetastoreError, InvalidInputError) as error:
            since = self._away_since.setdefault(key, now)
            if (now - since).total_seconds() < _UNREACHABLE_SECONDS:
                return False
            log.warning("StoreCluster %s goes, though its keys in etcd may stay: %s", cluster.key, error)
        return True

    def _own_set(self, cluster: StoreCluster) -> Object | None:
        return self._cache.get(STATEFUL_SET, cluster.metadata.namespace, cluster.metadata.name)


def _paused(cluster: StoreCluster) -> bool:
    return cluster.spec.paused or cluster.metadata.annotations.get(PAUSED_ANNOTATION) == "true"


def _key(cluster: StoreCluster) -> Key:
    return cluster.metadata.namespace, cluster.metadata.name


def _keys(cluster: StoreCluster) -> Keys:
    return Keys(namespace=cluster.metadata.namespace, store_cluster=cluster.metadata.name)


def _client_namespaces(cluster: StoreCluster) -> list[str]:
    return [name for name in cluster.metadata.annotations.get(CLIENTS_ANNOTATION, "").split(",") if name]


def _labelled(subjects: Iterator[Object], cluster: StoreCluster) -> list[Object]:
    name = cluster.metadata.name
    return [one for one in subjects if one["metadata"].get("labels", {}).get(STORE_CLUSTER_LABEL) == name]


def _check_owner(cluster: StoreCluster, live: Object | None) -> None:
    """A StatefulSet of a StoreCluster that was deleted goes first; its successor makes its own."""
    owners = live["metadata"].get("ownerReferences", ()) if live is not None else ()
    if live is not None and all(owner.get("uid") != cluster.metadata.uid for owner in owners):
        raise KubernetesError(
            f"{kind_of(live).name} {cluster.key} belongs to somebody else: delete it, or choose another name"
        )


def _refusal(error: KubernetesError) -> Trouble:
    if isinstance(error, ApiForbiddenError):
        return Trouble(Reason.FORBIDDEN, f"the operator lacks a permission: {error}")
    return Trouble(Reason.API_REFUSED, str(error))
