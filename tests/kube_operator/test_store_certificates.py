"""Store certificates from the operator or cert-manager, and errors while there are none."""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from evenkeel.errors import CertificateMissingError, ForeignObjectError
from evenkeel.kube.object_kinds import CERTIFICATE, SECRET
from evenkeel_operator.identity.authority import Authority
from evenkeel_operator.identity.store_certificates import CertManager, NoCertificates, OperatorAuthorities, seed_name
from evenkeel_operator.manifests.pod_settings import CertManagerSettings
from tests.kube_operator.support import FakeKube, store_cluster

CLUSTER = store_cluster()
COMPANY = CertManagerSettings(issuer_kind="ClusterIssuer", issuer="company")


class Kube(FakeKube):
    """An API server with cert-manager."""

    def fill(self, **data: str) -> None:
        """Fill the Secret as cert-manager does."""
        encoded = {name.replace("_", "."): b64encode(text.encode()).decode() for name, text in data.items()}
        self.add(SECRET, "main-tls", data=encoded)

    def issue(self, name: str) -> None:
        """As cert-manager makes a Secret for a Certificate, with what its `secretTemplate` says."""
        template = self.objects.get((CERTIFICATE, "shop", name), {"spec": {}})["spec"].get("secretTemplate", {})
        self.add(SECRET, name, data={})
        annotations = {**template.get("annotations", {}), "cert-manager.io/certificate-name": name}
        self.objects[SECRET, "shop", name]["metadata"]["annotations"] = annotations


def cert_manager(kube: Kube, settings: CertManagerSettings | None = None) -> CertManager:
    return CertManager(kube, settings or CertManagerSettings())  # type: ignore[arg-type]


def named(objects: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(one["kind"], one["metadata"]["name"]) for one in objects]


def test_an_authority_of_each_store_cluster() -> None:
    """Without a named issuer cert-manager gets a self-signed issuer, an authority and its issuer."""
    objects = cert_manager(Kube()).objects(CLUSTER)
    assert named(objects) == [
        ("Issuer", "main-selfsigned"),
        ("Certificate", "main-ca"),
        ("Issuer", "main-ca"),
        ("Certificate", "main-tls"),
    ]
    assert all(one["metadata"]["ownerReferences"][0]["name"] == "main" for one in objects)
    authority, issuer, certificate = (one["spec"] for one in objects[1:])
    assert authority["isCA"] is True
    assert authority["privateKey"]["rotationPolicy"] == "Never"
    assert issuer["ca"]["secretName"] == authority["secretName"]
    assert certificate["issuerRef"] == {"kind": "Issuer", "name": "main-ca"}


def test_the_certificate_is_valid_for_both_ends_and_all_stores() -> None:
    """Stores connect by pod names, and users by forwarded ports."""
    [certificate] = [one["spec"] for one in cert_manager(Kube(), COMPANY).objects(CLUSTER)]
    assert certificate["issuerRef"] == {"kind": "ClusterIssuer", "name": "company"}
    assert {"*.main.shop.svc", "localhost"} <= set(certificate["dnsNames"])
    assert certificate["ipAddresses"] == ["127.0.0.1"]
    assert {"server auth", "client auth"} <= set(certificate["usages"])


async def test_messages_of_cert_manager_are_reported() -> None:
    """Before the Secret is filled, the error has the Certificate's conditions."""
    kube = Kube()
    with pytest.raises(CertificateMissingError, match="check that cert-manager is running"):
        await cert_manager(kube).published(CLUSTER)
    conditions = [{"type": "Ready", "status": "False", "message": "issuer company not found"}]
    kube.add(CERTIFICATE, "main-tls", status={"conditions": conditions})
    with pytest.raises(CertificateMissingError, match="issuer company not found"):
        await cert_manager(kube).published(CLUSTER)


async def test_an_issuer_without_a_published_authority() -> None:
    """Clients could not verify the stores, which the error says."""
    kube = Kube()
    kube.fill(tls_crt="certificate")
    with pytest.raises(CertificateMissingError, match=r"no ca\.crt"):
        await cert_manager(kube).published(CLUSTER)


async def test_a_renewed_certificate_is_another_revision() -> None:
    """Only a renewal replaces the pods."""
    kube = Kube()
    source = cert_manager(kube)
    kube.fill(tls_crt="first", ca_crt="authority")
    first = await source.published(CLUSTER)
    assert first == await source.published(CLUSTER)
    kube.fill(tls_crt="second", ca_crt="authority")
    second = await source.published(CLUSTER)
    assert (first.authority, second.authority) == ("authority", "authority")
    assert first.revision != second.revision


async def test_clean_deletes_everything() -> None:
    """Certificates are deleted before their Secrets, which would be filled again."""
    kube = Kube()
    source = cert_manager(kube)
    for one in source.objects(CLUSTER):
        await kube.create(one)
    for name in ("main-tls", "main-ca"):
        kube.issue(name)
    await source.check(CLUSTER)
    await source.clean(CLUSTER)
    assert kube.objects == {}
    kinds = [call.split()[1] for call in kube.calls if call.startswith("delete ")]
    assert kinds.index("Secret") > max(index for index, kind in enumerate(kinds) if kind == "Certificate")


async def test_secrets_of_others_are_neither_overwritten_nor_deleted() -> None:
    """cert-manager would overwrite any Secret of that name, so no Certificate is created."""
    kube = Kube()
    kube.add(SECRET, "main-ca", data={"theirs": "x"})
    source = cert_manager(kube)
    with pytest.raises(ForeignObjectError, match=r"Secret shop/main-ca exists already.*rename or delete it"):
        await source.check(CLUSTER)
    await source.clean(CLUSTER)
    assert kube.objects[SECRET, "shop", "main-ca"]["data"] == {"theirs": "x"}


@pytest.mark.parametrize("gone", [False, True])
async def test_secrets_of_a_user_certificate_stay(gone: bool) -> None:
    """The Secret of a user's Certificate of that name has the only copy of its key."""
    kube = Kube()
    kube.add(CERTIFICATE, "main-ca", spec={"secretName": "main-ca", "isCA": True})
    kube.issue("main-ca")
    if gone:
        del kube.objects[CERTIFICATE, "shop", "main-ca"]
    source = cert_manager(kube)
    with pytest.raises(ForeignObjectError, match=r"Secret shop/main-ca exists already"):
        await source.check(CLUSTER)
    await source.clean(CLUSTER)
    assert (SECRET, "shop", "main-ca") in kube.objects


async def test_secrets_of_a_store_cluster_of_the_same_name() -> None:
    """They have another owner, and are neither used nor deleted."""
    kube = Kube()
    for one in cert_manager(kube).objects(store_cluster(uid="before")):
        await kube.create(one)
    kube.issue("main-tls")
    with pytest.raises(ForeignObjectError):
        await cert_manager(kube).check(CLUSTER)
    await cert_manager(kube).clean(CLUSTER)
    assert {(SECRET, "shop", "main-tls"), (CERTIFICATE, "shop", "main-tls")} <= kube.objects.keys()


async def test_secrets_of_earlier_releases() -> None:
    """They have no owner annotation, but the StoreCluster owns their Certificates."""
    kube = Kube()
    source = cert_manager(kube)
    for one in source.objects(CLUSTER):
        one["spec"].pop("secretTemplate", None)
        await kube.create(one)
    kube.issue("main-tls")
    await source.check(CLUSTER)
    await source.clean(CLUSTER)
    assert kube.objects == {}


async def test_an_interrupted_clean_up() -> None:
    """The Certificates are gone already; the Secrets still name their owner."""
    kube = Kube()
    source = cert_manager(kube)
    for one in source.objects(CLUSTER):
        await kube.create(one)
    kube.issue("main-tls")
    del kube.objects[CERTIFICATE, "shop", "main-tls"]
    await source.clean(CLUSTER)
    assert kube.objects == {}


async def test_the_operator_certificate_follows_the_calendar() -> None:
    """It is the same within a period; half a year later it has a new revision of the same authority."""
    now = [datetime(2026, 5, 1, tzinfo=UTC)]
    source = OperatorAuthorities(b"s" * 32, wall_clock=lambda: now[0])
    first, secret = await source.published(CLUSTER), source.objects(CLUSTER)
    assert first.authority == Authority(b"s" * 32, seed_name(CLUSTER)).certificate
    assert source.objects(CLUSTER) == secret
    now[0] += timedelta(days=200)
    second = await source.published(CLUSTER)
    assert (second.authority, second.revision != first.revision) == (first.authority, True)
    assert source.objects(CLUSTER) != secret


async def test_without_tls() -> None:
    """There is nothing to create or publish."""
    source = NoCertificates()
    assert (source.objects(CLUSTER), (await source.published(CLUSTER)).authority) == ([], "")
