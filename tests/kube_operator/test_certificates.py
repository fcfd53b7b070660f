"""Who signs for stores: the operator, or cert-manager, and what is said where nobody has yet."""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from evenkeel.errors import CertificateMissingError
from evenkeel.kube.kinds import CERTIFICATE, ISSUER, SECRET
from evenkeel_operator.authority import Authority
from evenkeel_operator.certificates import CertManager, NoCertificates, OwnAuthorities, seed_name
from evenkeel_operator.manifests.settings import CertManagerSettings
from tests.kube_operator.support import FakeKube, store_cluster

CLUSTER = store_cluster()
COMPANY = CertManagerSettings(issuer_kind="ClusterIssuer", issuer="company")


class Kube(FakeKube):
    """Has cert-manager beside it."""

    def fill(self, **data: str) -> None:
        """As cert-manager fills the Secret."""
        encoded = {name.replace("_", "."): b64encode(text.encode()).decode() for name, text in data.items()}
        self.add(SECRET, "main-tls", data=encoded)


def cert_manager(kube: Kube, settings: CertManagerSettings | None = None) -> CertManager:
    return CertManager(kube, settings or CertManagerSettings())  # type: ignore[arg-type]


def named(objects: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(one["kind"], one["metadata"]["name"]) for one in objects]


def test_an_authority_of_each_store_cluster() -> None:
    """Where nobody is named, cert-manager gets all it needs: a beginning, an authority, and who signs by it."""
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


def test_the_certificate_is_good_for_both_ends_and_all_stores() -> None:
    """Stores dial each other by pod names, and people through forwarded ports."""
    [certificate] = [one["spec"] for one in cert_manager(Kube(), COMPANY).objects(CLUSTER)]
    assert certificate["issuerRef"] == {"kind": "ClusterIssuer", "name": "company"}
    assert {"*.main.shop.svc", "localhost"} <= set(certificate["dnsNames"])
    assert certificate["ipAddresses"] == ["127.0.0.1"]
    assert {"server auth", "client auth"} <= set(certificate["usages"])


async def test_what_cert_manager_says_is_told() -> None:
    """Before the Secret is filled, the Certificate's own words are passed on."""
    kube = Kube()
    with pytest.raises(CertificateMissingError, match="is it running"):
        await cert_manager(kube).shown(CLUSTER)
    conditions = [{"type": "Ready", "status": "False", "message": "issuer company not found"}]
    kube.add(CERTIFICATE, "main-tls", status={"conditions": conditions})
    with pytest.raises(CertificateMissingError, match="issuer company not found"):
        await cert_manager(kube).shown(CLUSTER)


async def test_an_issuer_that_does_not_tell_its_authority() -> None:
    """Clients could not check what stores show, so that is said instead."""
    kube = Kube()
    kube.fill(tls_crt="certificate")
    with pytest.raises(CertificateMissingError, match=r"no ca\.crt"):
        await cert_manager(kube).shown(CLUSTER)


async def test_a_renewed_certificate_is_another_revision() -> None:
    """Pods are replaced then, and only then."""
    kube = Kube()
    source = cert_manager(kube)
    kube.fill(tls_crt="first", ca_crt="authority")
    first = await source.shown(CLUSTER)
    assert first == await source.shown(CLUSTER)
    kube.fill(tls_crt="second", ca_crt="authority")
    second = await source.shown(CLUSTER)
    assert (first.authority, second.authority) == ("authority", "authority")
    assert first.revision != second.revision


async def test_nothing_is_left() -> None:
    """Certificates go before their Secrets, which would be filled again."""
    kube = Kube()
    source = cert_manager(kube)
    for one in source.objects(CLUSTER):
        kube.add(CERTIFICATE if one["kind"] == "Certificate" else ISSUER, one["metadata"]["name"])
    kube.fill(tls_crt="certificate", ca_crt="authority")
    kube.add(SECRET, "main-ca")
    await source.clean(CLUSTER)
    assert kube.objects == {}
    kinds = [call.split()[1] for call in kube.calls]
    assert kinds.index("Secret") > max(index for index, kind in enumerate(kinds) if kind == "Certificate")


async def test_our_own_follow_from_the_calendar() -> None:
    """The same all day for everybody; half a year later another revision of the same authority."""
    now = [datetime(2026, 5, 1, tzinfo=UTC)]
    source = OwnAuthorities(b"s" * 32, today=lambda: now[0])
    first, secret = await source.shown(CLUSTER), source.objects(CLUSTER)
    assert first.authority == Authority(b"s" * 32, seed_name(CLUSTER)).certificate
    assert source.objects(CLUSTER) == secret
    now[0] += timedelta(days=200)
    second = await source.shown(CLUSTER)
    assert (second.authority, second.revision != first.revision) == (first.authority, True)
    assert source.objects(CLUSTER) != secret


async def test_without_tls() -> None:
    """There is nothing to make and nothing to show."""
    source = NoCertificates()
    assert (source.objects(CLUSTER), (await source.shown(CLUSTER)).authority) == ([], "")
