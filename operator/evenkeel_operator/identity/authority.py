"""Certificates and access tokens derived from one seed.

Keys are derived, signatures are deterministic and validity periods follow the calendar. So every replica of the
operator issues the same bytes for a name within a period, however often it is asked. Only the seed is stored, no Secret
has to be read to decide whether it is up to date, and issuing again in the next period renews a certificate.

Each StoreCluster has its own authority, so no cluster trusts the stores of another.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

__all__ = ["SEED_BYTES", "Authority", "Issued", "period", "token"]

SEED_BYTES: Final = 32
_PERIOD: Final = timedelta(days=180)
_BEGINNING: Final = datetime(2025, 1, 1, tzinfo=UTC)
_END: Final = datetime(2125, 1, 1, tzinfo=UTC)
_SKEW: Final = timedelta(days=1)
_CURVE: Final = ec.SECP256R1()
_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""Order of the curve; private keys are the numbers from 1 to `_ORDER` - 1."""


class Issued(NamedTuple):
    """A certificate and its key, as PEM."""

    certificate: str
    key: str


def period(now: datetime) -> int:
    """Return the number of the current validity period; a certificate stays valid for one more period."""
    return (now - _BEGINNING) // _PERIOD


def token(seed: bytes, name: str) -> str:
    """Return the access token that clients of `name` present."""
    return hmac.digest(seed, f"token/{name}".encode(), "sha256").hex()


class Authority:
    """The certificate authority of one group of processes that trust each other."""

    def __init__(self, seed: bytes, name: str) -> None:
        self._seed = seed
        self._name = name
        self._key = _derive(seed, f"authority/{name}")
        self._certificate = self._own_certificate()

    @property
    def certificate(self) -> str:
        """The authority's own certificate, as PEM."""
        return _pem(self._certificate)

    def issue(self, subject: str, hosts: Iterable[str], *, now: datetime) -> Issued:
        """Issue a certificate for `hosts`, names or addresses, valid for servers and clients."""
        number = period(now)
        start = _BEGINNING + number * _PERIOD
        key = _derive(self._seed, f"key/{self._name}/{subject}/{number}")
        names = [_general_name(host) for host in hosts]
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = (
            _builder(subject, issuer=self._certificate.subject, key=key, label=f"{self._name}/{subject}/{number}")
            .not_valid_before(start - _SKEW)
            .not_valid_after(start + 2 * _PERIOD)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signing=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return Issued(_pem(self._sign(builder)), _pem_key(key))

    def _own_certificate(self) -> x509.Certificate:
        name = _name(f"evenkeel {self._name}")
        builder = (
            _builder(f"evenkeel {self._name}", issuer=name, key=self._key, label=f"authority/{self._name}")
            .not_valid_before(_BEGINNING)
            .not_valid_after(_END)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signing=True), critical=True)
        )
        return self._sign(builder)

    def _sign(self, builder: x509.CertificateBuilder) -> x509.Certificate:
        return builder.sign(self._key, hashes.SHA256(), ecdsa_deterministic=True)


def _derive(seed: bytes, label: str) -> ec.EllipticCurvePrivateKey:
    """Derive a private key from the seed; the same label always yields the same key."""
    stream = HKDF(algorithm=hashes.SHA256(), length=48, salt=None, info=label.encode()).derive(seed)
    return ec.derive_private_key(1 + int.from_bytes(stream, "big") % (_ORDER - 1), _CURVE)


def _builder(
    subject: str, *, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, label: str
) -> x509.CertificateBuilder:
    digest = hashes.Hash(hashes.SHA256())
    digest.update(label.encode())
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(1 + (int.from_bytes(digest.finalize()[:16], "big") >> 1))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _usage(*, signing: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signing,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signing,
        crl_sign=signing,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _pem_key(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
