"""Keys and identities of a control plane: a certificate authority, and a token for each user."""

from __future__ import annotations

import secrets
from pathlib import Path

import msgspec

from e2e.cluster.processes import run

__all__ = ["Identity", "Pki"]

_DAYS = "30"


class Identity(msgspec.Struct, frozen=True):
    """A user of the API server, authenticated by a token."""

    user: str
    group: str = ""

    def row(self, token: str) -> str:
        """Return the user's row of the `--token-auth-file`."""
        return f'{token},{self.user},{self.user},"{self.group}"'


class Pki:
    """The files, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = folder / "ca.crt"
        self.serving = folder / "serving.crt"
        self.kubelet_client = folder / "kubelet-client.crt"
        """Client certificate of the API server for kubelets."""
        self.account_key = folder / "service-accounts.key"
        self.account_public_key = folder / "service-accounts.pub"
        self.tokens = folder / "tokens.csv"

    def make(self, *, names: str, identities: dict[str, Identity]) -> None:
        """Create all files; `names` are the API server's subject alternative names: `IP:127.0.0.1,DNS:localhost`."""
        self.folder.mkdir(parents=True, mode=0o700)
        self._authority()
        self._certificate(self.serving, subject="/CN=kube-apiserver", extension=f"subjectAltName={names}")
        self._certificate(
            self.kubelet_client, subject="/O=system:masters/CN=kube-apiserver", extension="extendedKeyUsage=clientAuth"
        )
        run("openssl", "genrsa", "-out", self.account_key, "2048")
        run("openssl", "rsa", "-in", self.account_key, "-pubout", "-out", self.account_public_key)
        tokens = {name: secrets.token_hex(16) for name in identities}
        self.tokens.write_text("".join(f"{identities[name].row(tokens[name])}\n" for name in identities))
        for name, token in tokens.items():
            (self.folder / f"{name}.token").write_text(token)

    def token(self, name: str) -> str:
        """Return the token of an identity."""
        return (self.folder / f"{name}.token").read_text()

    def _authority(self) -> None:
        run(
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-keyout", self.ca.with_suffix(".key"), "-out", self.ca, "-days", _DAYS, "-subj", "/CN=evenkeel-e2e"),
            *("-addext", "keyUsage=critical,keyCertSign,digitalSignature"),
        )

    def _certificate(self, cert: Path, *, subject: str, extension: str) -> None:
        key, request = cert.with_suffix(".key"), cert.with_suffix(".csr")
        run(
            *("openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-keyout", key, "-out", request, "-subj", subject, "-addext", extension),
        )
        run(
            *("openssl", "x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", self.ca.with_suffix(".key")),
            *("-CAcreateserial", "-out", cert, "-days", _DAYS, "-copy_extensions", "copy"),
        )
