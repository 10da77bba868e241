"""TLS of the API: certificate and key from files, read again when they change; clients' too, if asked for."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from controller.errors import SettingsError
from controller.settings import ApiSettings

log = logging.getLogger(__name__)


class ServerTls:
    """The server's side; raises `SettingsError` when the files are not what they should be."""

    def __init__(self, cert: Path, key: Path, client_ca: Path | None) -> None:
        self._cert = cert
        self._key = key
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            self._stamp = self._read_stamp()
            self.context.load_cert_chain(cert, key)
            if client_ca is not None:
                self.context.load_verify_locations(client_ca)
                self.context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(str(file) for file in (cert, key, client_ca) if file)
            rule = "must be readable PEM files that go together"
            raise SettingsError(f"api.tls_* {rule}, got {files}: {error}") from None

    def refresh(self) -> None:
        """Use a renewed certificate for new connections; one that does not load leaves the old one in use."""
        try:
            stamp = self._read_stamp()
            if stamp != self._stamp:
                self.context.load_cert_chain(self._cert, self._key)
                self._stamp = stamp
                log.info("the API's certificate was read again")
        except (OSError, ssl.SSLError) as error:
            why = {"repeat_key": "tls"}
            log.warning("%s cannot be used, the old one stays: %s", self._cert, error, extra=why)

    def _read_stamp(self) -> tuple[int, int]:
        return self._cert.stat().st_mtime_ns, self._key.stat().st_mtime_ns


def server_tls(settings: ApiSettings) -> ServerTls | None:
    """TLS as the settings ask for it; `None`: plain HTTP."""
    if settings.tls_cert_file is None or settings.tls_key_file is None:
        return None
    return ServerTls(settings.tls_cert_file, settings.tls_key_file, settings.tls_client_ca_file)
