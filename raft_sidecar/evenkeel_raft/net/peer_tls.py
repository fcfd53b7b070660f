"""TLS between stores: both ends present a certificate of the same authority.

The files are read again for each connection, so renewed certificates take effect without a restart.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NamedTuple

from evenkeel.errors import InvalidInputError

__all__ = ["TlsFiles"]


class TlsFiles(NamedTuple):
    """PEM files. With an empty `server_name`, a peer's certificate must name the host that was dialled."""

    ca: Path
    cert: Path
    key: Path
    server_name: str = ""

    def client_context(self) -> ssl.SSLContext:
        """Return the context for dialling."""
        return self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))

    def server_context(self) -> ssl.SSLContext:
        """Return the context for accepting."""
        context = self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _load(self, context: ssl.SSLContext) -> ssl.SSLContext:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        for what, file in (("authority", self.ca), ("certificate", self.cert), ("key", self.key)):
            if not file.is_file():
                raise InvalidInputError(f"TLS {what} file {file} does not exist; check the paths of ca, cert and key")
        try:
            context.load_verify_locations(self.ca)
            context.load_cert_chain(self.cert, self.key)
        except (OSError, ssl.SSLError) as error:
            raise InvalidInputError(
                f"cannot load the TLS files {self.ca}, {self.cert} and {self.key}: {error}; check that the key belongs "
                "to the certificate and that all three are PEM files"
            ) from error
        return context
