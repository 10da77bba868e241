"""`python -m controller.health_check`: does the sidecar in this container live?  For HEALTHCHECK.

Ends with 0 when `/healthz` answers 200, else with 1 and the reason.  Standard library only, since it
starts anew every few seconds; no proxy of the environment is asked; no certificate is checked, since the
one of the API bears the name that others call it by.
"""

from __future__ import annotations

import os
import ssl
import sys
from collections.abc import Mapping
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit

TIMEOUT_S = 2.0


def address(environment: Mapping[str, str]) -> str:
    """The sidecar's URL: `SPECGOV_URL`, or what the settings in `environment` come to."""
    scheme = "https" if environment.get("SPECGOV_API__TLS_CERT_FILE") else "http"
    port = environment.get("SPECGOV_API__PORT", "9470")
    return environment.get("SPECGOV_URL") or f"{scheme}://127.0.0.1:{port}"


def problem(url: str, client_cert: str | None = None) -> str | None:
    """Why the sidecar at `url` is not healthy; `None`: it is.

    `client_cert`: certificate and key in one PEM file, where the API asks its clients for one.
    """
    connection = None
    try:
        connection = _connection(url, client_cert)
        connection.request("GET", "/healthz")
        status = connection.getresponse().status
    except (OSError, HTTPException, ValueError) as error:
        return f"{url}/healthz: {error!r}"
    finally:
        if connection is not None:
            connection.close()
    return None if status == HTTPStatus.OK else f"{url}/healthz: HTTP {status}"


def _connection(url: str, client_cert: str | None) -> HTTPConnection:
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme != "https":
        return HTTPConnection(host, parts.port, timeout=TIMEOUT_S)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if client_cert:
        context.load_cert_chain(client_cert)
    return HTTPSConnection(host, parts.port, timeout=TIMEOUT_S, context=context)


if __name__ == "__main__":
    sys.exit(problem(address(os.environ), os.environ.get("SPECGOV_CLIENT_CERT_FILE")))
