"""TLS between stores: both ends show a certificate of the same authority.

Files are read anew for each connection, so that renewed certificates are taken up without a restart.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NamedTuple

from evenkeel.errors import InvalidInputError

__all__ = ["TlsFiles"]


class TlsFiles(NamedTuple):
    """PEM files. Where `server_name` is empty, a peer's certificate must name the host it was dialled by."""

    ca: Path
    cert: Path
    key: Path
    server_name: str = ""

    def client_context(self) -> ssl.SSLContext:
        """For a connection we dial."""
        return self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))

    def server_context(self) -> ssl.SSLContext:
        """For a connection we accept."""
        context = self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _load(self, context: ssl.SSLContext) -> ssl.SSLContext:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        for what, file in (("authority", self.ca), ("certificate", self.cert), ("key", self.key)):
            if not file.is_file():
                raise InvalidInputError(f"TLS {what} {file} is not there: check the paths of ca, cert and key")
        try:
            context.load_verify_locations(self.ca)
            context.load_cert_chain(self.cert, self.key)
        except (OSError, ssl.SSLError) as error:
            raise InvalidInputError(
                f"TLS cannot use {self.ca}, {self.cert} and {self.key}: {error}; check that the key belongs to the "
                "certificate and all three are PEM files"
            ) from error
        return context
