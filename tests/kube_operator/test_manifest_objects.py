"""Manifests of a StoreCluster's objects."""

from __future__ import annotations

import base64
import shlex
from typing import Any

import pytest

from evenkeel_operator.manifests import secrets, stateful_set
from evenkeel_operator.manifests.pod_settings import MetastoreAccess, PodSettings
from evenkeel_raft.process.options import parse_options as parse_raft_options
from evenkeel_store.process.options import parse_options as parse_store_options
from tests.kube_operator.support import store_cluster

SETTINGS = PodSettings(image="registry.example/store:1")
PLAIN = PodSettings(image="store:1", tls=False)
ACCESS = MetastoreAccess(endpoints=("http://etcd-0.etcd:2379", "http://etcd-1.etcd:2379"))


def pod(settings: PodSettings = SETTINGS, access: MetastoreAccess = ACCESS, **spec: Any) -> dict[str, Any]:
    made = stateful_set.stateful_set(store_cluster(**spec), settings, access, replicas=3)
    found: dict[str, Any] = made["spec"]["template"]["spec"]
    return found


def containers(spec: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    [raft], [store] = spec["initContainers"], spec["containers"]
    return raft, store


def test_the_sidecar_is_native() -> None:
    """It starts before the store, keeps running, and stops after it."""
    raft, store = containers(pod())
    assert (raft["name"], raft["restartPolicy"]) == ("raft", "Always")
    assert "startupProbe" in raft
    assert (store["name"], "restartPolicy" in store) == ("store", False)


@pytest.mark.parametrize("settings", [SETTINGS, PLAIN], ids=["tls", "plain"])
def test_programs_understand_their_arguments(settings: PodSettings) -> None:
    """The programs accept the arguments of the pods, once Kubernetes has substituted names."""
    keys = frozenset({"ca.crt", "tls.crt", "tls.key"})
    access = MetastoreAccess(endpoints=("https://etcd:2379",), secret="main-metastore", keys=keys, server_name="etcd")
    raft, store = containers(pod(settings, access))
    known = {"POD_NAME": "main-0", "POD_UID": "pod-uid", "NODE_NAME": "node-1"}
    raft_options = parse_raft_options(filled(raft, known), {})
    store_options = parse_store_options(filled(store, known), {})

    assert (raft_options.store, store_options.store) == ("main-0", "main-0")
    assert raft_options.keys.root == store_options.keys.root == "/evenkeel/shop/main/"
    assert str(raft_options.advertise) == "main-0.main.shop.svc:7400"
    assert raft_options.socket == store_options.socket
    assert (raft_options.node, raft_options.pod) == ("node-1", "pod-uid")
    assert (raft_options.tls is not None, store_options.tls is not None) == (settings.tls, settings.tls)
    assert raft_options.flight.startswith("grpc+tls://" if settings.tls else "grpc://main-0")
    assert raft_options.etcd == store_options.etcd
    assert str(store_options.etcd.cert).startswith("/etc/evenkeel/metastore/")


def test_changed_throttles_and_thresholds_replace_no_pod() -> None:
    """Running sidecars read them from the metastore, so the template is the same."""
    changed = pod(
        throttles={"bytesPerSecond": "10M", "maxConcurrentMoves": 7},
        failureHandling={"retriesBeforeDegraded": 3, "stalledAfter": "5s", "stepDownWhenStalled": True},
    )
    assert changed == pod()


def filled(container: dict[str, Any], known: dict[str, str]) -> list[str]:
    arguments = list(container["args"])
    for name, value in known.items():
        arguments = [argument.replace(f"$({name})", value) for argument in arguments]
    assert not [argument for argument in arguments if "$(" in argument]
    return arguments


def test_both_containers_see_the_same_files() -> None:
    """Containers exchange snapshots as paths, so data and sockets have the same paths in both."""
    raft, store = containers(pod())
    shared = {"data", "sockets"}
    mounts = [
        {m["name"]: m["mountPath"] for m in container["volumeMounts"] if m["name"] in shared}
        for container in (raft, store)
    ]
    assert mounts[0] == mounts[1]
    assert mounts[0].keys() == shared


def test_every_mount_has_a_volume() -> None:
    """No container mounts what the pod does not have, with TLS or without."""
    for settings in (SETTINGS, PLAIN):
        spec = pod(settings)
        volumes = {volume["name"] for volume in spec["volumes"]} | {"data"}
        for container in containers(spec):
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


def test_pods_are_restricted() -> None:
    """They pass the Pod Security Standard `restricted`, and their root is read-only."""
    spec = pod()
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    for container in containers(spec):
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["readOnlyRootFilesystem"] is True


def test_the_database_follows_the_limits() -> None:
    """The memory of the database follows the container's limit, not the node."""
    limits = {"memory": "1Gi", "cpu": "1500m"}
    _, store = containers(pod(resources={"store": {"limits": limits}}))
    options = parse_store_options(filled(store, {"POD_NAME": "main-0", "POD_UID": "", "NODE_NAME": ""}), {})
    assert options.memory == f"{int(0.6 * 2**30)}B"
    assert store["resources"] == {"limits": limits}


def test_raft_s_logs_follow_the_limits() -> None:
    """Logs are in memory, and are limited to a quarter of the container's memory."""
    raft, _ = containers(pod(resources={"raft": {"limits": {"memory": "1Gi"}}}))
    options = parse_raft_options(filled(raft, {"POD_NAME": "main-0", "POD_UID": "", "NODE_NAME": ""}), {})
    assert options.host.keep_logs_bytes == 2**28


def test_no_limits_are_no_arguments() -> None:
    """Without limits the processes use their defaults."""
    raft, store = containers(pod())
    assert not [argument for argument in store["args"] if argument.startswith("--memory")]
    assert not [argument for argument in raft["args"] if argument.startswith("--keep")]


def test_another_state_machine() -> None:
    """Any program that implements the socket protocol can replace the store."""
    command = tuple(shlex.split("python3 -m mine --fast"))
    _, store = containers(pod(PodSettings(image="i", store_command=command)))
    assert store["command"] == ["python3"]
    assert store["args"][:3] == ["-m", "mine", "--fast"]


def test_store_arguments() -> None:
    """A store trusts the authority of the others; `healing: Manual` turns off self-healing."""
    _, store = containers(pod())
    assert "--tls-ca=/etc/evenkeel/tls/ca.crt" in store["args"]
    assert "--heal=no" not in store["args"]
    _, manual = containers(pod(PLAIN, healing="Manual"))
    assert "--heal=no" in manual["args"]
    assert not [argument for argument in manual["args"] if argument.startswith("--tls")]


def test_stores_are_apart() -> None:
    """Two stores of a cluster are never on one node, unless allowed; they are spread over zones."""
    hard, soft = pod(), pod(PodSettings(image="i", apart=False))
    assert "requiredDuringSchedulingIgnoredDuringExecution" in hard["affinity"]["podAntiAffinity"]
    assert "affinity" not in soft
    keys = [constraint["topologyKey"] for constraint in soft["topologySpreadConstraints"]]
    assert keys == ["topology.kubernetes.io/zone", "kubernetes.io/hostname"]


def test_a_user_and_a_password_for_etcd() -> None:
    """The user comes from the environment and the password from a file: neither is in the pod's spec."""
    access = MetastoreAccess(endpoints=("http://e:1",), secret="etcd-login", keys=frozenset({"username", "password"}))
    raft, _ = containers(pod(PLAIN, access))
    [user] = [entry for entry in raft["env"] if entry["name"] == "EVENKEEL_ETCD_USER"]
    assert user["valueFrom"]["secretKeyRef"] == {"name": "etcd-login", "key": "username"}
    assert "--etcd-password-file=/etc/evenkeel/metastore/password" in raft["args"]


def test_the_set_starts_in_parallel_and_keeps_its_volumes() -> None:
    """Stores start together; volumes outlive the StatefulSet."""
    spec = stateful_set.stateful_set(store_cluster(), SETTINGS, ACCESS, replicas=4)["spec"]
    assert (spec["podManagementPolicy"], spec["replicas"]) == ("Parallel", 4)
    assert spec["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    [claim] = spec["volumeClaimTemplates"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "10Gi"
    assert "storageClassName" not in claim["spec"]


def test_immutable_fields_of_a_set_stay() -> None:
    """A larger volume does not change the claim template, which the API server would reject."""
    live = stateful_set.stateful_set(store_cluster(), SETTINGS, ACCESS, replicas=3)
    larger = store_cluster(storage={"size": "20Gi"})
    again = stateful_set.stateful_set(larger, SETTINGS, ACCESS, replicas=3, live=live)
    assert again["spec"]["volumeClaimTemplates"] == live["spec"]["volumeClaimTemplates"]


def test_another_revision_replaces_pods() -> None:
    """Renewed certificates change the template, so pods are replaced one at a time."""
    one, two = (
        stateful_set.stateful_set(store_cluster(), SETTINGS, ACCESS, replicas=3, revision=revision)["spec"]["template"]
        for revision in ("1", "2")
    )
    assert one != two


def test_the_service_includes_pods_that_are_not_ready() -> None:
    """Stores find each other by name before they are ready."""
    spec = stateful_set.service(store_cluster())["spec"]
    assert (spec["clusterIP"], spec["publishNotReadyAddresses"]) == ("None", True)


def test_the_budget_never_blocks_a_drain_for_good() -> None:
    """One ready pod at a time may be evicted; unavailable pods without replicas do not count."""
    spec = stateful_set.budget(store_cluster())["spec"]
    assert (spec["maxUnavailable"], spec["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")
    assert stateful_set.budget(store_cluster(), idle=2)["spec"]["maxUnavailable"] == 3


def test_objects_have_an_owner() -> None:
    """Objects in the same namespace have an ownerReference; others have the annotation."""
    cluster = store_cluster(clientNamespaces=["jobs", "shop"])
    made = [stateful_set.service(cluster), stateful_set.budget(cluster), stateful_set.service_account(cluster)]
    own, elsewhere = secrets.client_secrets(cluster, token="t")
    for subject in (*made, own):
        assert subject["metadata"]["ownerReferences"][0]["uid"] == "u1"
    assert elsewhere["metadata"]["namespace"] == "jobs"
    assert "ownerReferences" not in elsewhere["metadata"]


def test_client_secrets() -> None:
    """They have the endpoints of all stores, an access token and, with TLS, the certificate authority."""
    [secret] = secrets.client_secrets(store_cluster(stores=2), token="t0ken", authority="PEM")
    data = {name: base64.b64decode(value).decode() for name, value in secret["data"].items()}
    assert data == {
        "endpoints": "grpc+tls://main-0.main.shop.svc:7410,grpc+tls://main-1.main.shop.svc:7410",
        "namespace": "shop",
        "store-cluster": "main",
        "token": "t0ken",
        "ca.crt": "PEM",
    }
