"""The container's own health check: whom it asks, and when it says no."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from controller.health_check import address, problem


@pytest.fixture
def sidecar():
    """A server whose `/healthz` answers `server.status`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(self.server.status if self.path == "/healthz" else 404)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        server.url = f"http://127.0.0.1:{server.server_port}"
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("environment", "url"),
    [
        ({}, "http://127.0.0.1:9470"),
        ({"SPECGOV_API__PORT": "9500", "SPECGOV_API__HOST": "0.0.0.0"}, "http://127.0.0.1:9500"),
        ({"SPECGOV_API__TLS_CERT_FILE": "/tls/cert.pem"}, "https://127.0.0.1:9470"),
        ({"SPECGOV_URL": "http://10.1.2.3:80", "SPECGOV_API__PORT": "9500"}, "http://10.1.2.3:80"),
    ],
)
def test_it_asks_where_the_settings_in_the_environment_say(environment, url):
    """Another port or https, and SPECGOV_URL before both."""
    assert address(environment) == url


def test_a_sidecar_that_lives_is_healthy_whatever_proxy_the_environment_names(sidecar, monkeypatch):
    """Container engines hand the proxy of their host on; the loopback address is not behind it."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    sidecar.status = 200
    assert problem(sidecar.url) is None


def test_a_loop_that_stands_still_is_not_healthy(sidecar):
    """The sidecar then answers 503, and the engine's health log gets the reason."""
    sidecar.status = 503
    assert problem(sidecar.url) == f"{sidecar.url}/healthz: HTTP 503"


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "https://127.0.0.1:9", "http://127.0.0.1:none"])
def test_nobody_there_is_not_healthy(url):
    """No connection, or an address that is none: a reason, not a traceback."""
    assert url in problem(url)
