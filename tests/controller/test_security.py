"""Who may do what, how often, and what never shows: the claims of docs/security.md."""

from __future__ import annotations

import asyncio
import datetime as dt
import inspect
import ipaddress
import logging
import re
import ssl
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from typer.testing import CliRunner

from controller import health_check, serving, wiring
from controller.cli import make_app
from controller.cli._common import _headers
from controller.errors import SettingsError
from controller.settings import ApiSettings, load
from controller.tls import server_tls
from controller.tokens import TokenSource

SECRETS = {"api": "tok-api-7f3a", "read": "tok-read-91bc", "key": "tok-key-55d0", "admin": "tok-admin-c2e8"}
HOSTILE = (
    '<img src=x onerror="alert(1)"><script>alert(2)</script> ${7*7} {{7*7}} \' "  & '
    "\\u0000 =cmd|' /C calc'!A0"
)


def secret_files(tmp_path):
    for name, value in SECRETS.items():
        (tmp_path / name).write_text(value + "\n")
    return {
        "api__token_file": str(tmp_path / "api"),
        "api__read_token_file": str(tmp_path / "read"),
        "api__protect_reads": True,
        "engine__api_key_file": str(tmp_path / "key"),
        "engine__admin_api_key_file": str(tmp_path / "admin"),
    }


async def test_a_read_token_reads_and_changes_nothing(make, tmp_path):
    """Two tokens: one for dashboards, one for whoever may switch."""
    bench = await make(**secret_files(tmp_path))
    await bench.tick()
    reader, operator = ({"authorization": f"Bearer {SECRETS[name]}"} for name in ("read", "api"))
    for headers in (reader, operator):
        assert (await bench.api.get("/v1/status", headers=headers)).status_code == 200
    body = {"mode": "off", "reason": "x"}
    assert (await bench.api.put("/v1/override", json=body, headers=reader)).status_code == 401
    assert (await bench.api.delete("/v1/override", headers=reader)).status_code == 401
    assert (await bench.api.put("/v1/override", json=body, headers=operator)).status_code == 200


async def test_an_emptied_token_file_opens_nothing(make, tmp_path):
    """A rotation that goes wrong shuts everybody out rather than letting everybody in."""
    file = tmp_path / "token"
    file.write_text("first")
    bench = await make(api__token_file=str(file))
    file.write_text("")
    for headers in ({}, {"authorization": "Bearer "}, {"authorization": "Bearer first"}):
        answer = await bench.api.put("/v1/override", json={"mode": "off", "reason": "x"}, headers=headers)
        assert answer.status_code == 401


def test_tokens_are_compared_in_constant_time():
    """By the standard library's own comparison, over bytes, whatever was presented."""
    assert "compare_digest" in inspect.getsource(TokenSource.matches)
    assert "==" not in inspect.getsource(TokenSource.matches)
    source = TokenSource("token")
    assert [source.matches(x) for x in ("token", "Token", "", "tok", "tokenn", "\udc80é")] == [True] + [
        False
    ] * 5


async def test_no_secret_is_in_any_answer_log_line_or_representation(make, tmp_path, caplog):
    """Through a refusal by the engine, a fault, and every page of the API."""
    caplog.set_level(logging.DEBUG)
    bench = await make(**secret_files(tmp_path))
    bench.engine.admin_key = "another"
    await bench.run(3)
    bench.loop._observer.observe = None
    await bench.loop._survive(bench.clock.now_s)
    headers = {"authorization": f"Bearer {SECRETS['api']}"}
    shown = [caplog.text, repr(bench.assembly.sidecar.settings), repr(vars(bench.assembly.client))]
    paths = list(bench.assembly.app.openapi()["paths"])
    paths += ["/", "/docs", "/openapi.json"]
    shown += [(await bench.api.get(path, headers=headers)).text for path in paths]
    for secret in SECRETS.values():
        assert not any(secret in text for text in shown)


@pytest.mark.parametrize("key", ["api.token", "api.read_token", "engine.api_key", "engine.admin_api_key"])
def test_secrets_are_not_taken_from_the_command_line(key):
    """Every process of the machine can read it there."""
    result = CliRunner().invoke(make_app(), ["run", "--set", f"{key}=hunter2"])
    assert result.exit_code == 2
    assert f"{key} must not be given on the command line" in result.output.replace("\n", " ")
    assert "hunter2" not in result.output


async def test_too_many_requests_are_refused_and_probes_are_not(make):
    """2 a second, 4 at once: the fifth is told when to come again; probes are always served."""
    bench = await make(api__max_requests_per_s=2)
    codes = [(await bench.api.get("/v1/status")).status_code for _ in range(6)]
    assert codes == [200] * 4 + [429] * 2
    refused = await bench.api.get("/v1/override")
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    for path in ("/healthz", "/metrics"):
        assert (await bench.api.get(path)).status_code == 200
    bench.clock.now_s += 1
    assert [(await bench.api.get("/v1/status")).status_code for _ in range(3)] == [200, 200, 429]


async def test_a_flood_of_reads_leaves_room_for_the_order_to_turn_off(make):
    """And one of orders leaves room to read what they did."""
    bench = await make(api__max_requests_per_s=2)
    assert [(await bench.api.get("/v1/status")).status_code for _ in range(5)][-1] == 429
    body = {"mode": "off", "reason": "x"}
    orders = [(await bench.api.put("/v1/override", json=body)).status_code for _ in range(5)]
    assert orders == [200] * 4 + [429]
    bench.clock.now_s += 1
    assert [(await bench.api.put("/v1/override", json=body)).status_code for _ in range(3)][-1] == 429
    assert (await bench.api.get("/v1/status")).status_code == 200


async def test_a_flood_of_reads_leaves_room_for_whoever_types_status(make):
    """A dashboard that runs away on this machine, and `specgov status` beside it; both are bounded."""
    bench = await make(api__max_requests_per_s=2)
    assert [(await bench.api.get("/v1/status")).status_code for _ in range(5)][-1] == 429
    command = _headers(None)
    asked = [(await bench.api.get("/v1/status", headers=command)).status_code for _ in range(5)]
    assert asked == [200] * 4 + [429]


async def test_a_client_that_goes_away_leaves_no_trace_in_the_log(make, caplog):
    """Its order is not done, and no traceback is written for it."""
    bench = await make()
    sent = iter([{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}])
    scope = {
        "type": "http",
        "method": "PUT",
        "path": "/v1/override",
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
    }

    async def receive():
        return next(sent)

    async def send(_message):
        pass

    await bench.assembly.app(scope, receive, send)
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    assert (await bench.api.get("/v1/override")).json()["mode"] == "auto"


async def test_strangers_cannot_use_up_what_the_holder_of_the_token_may_do(make, tmp_path):
    """Neither with reads nor with orders that end in 401, nor by a token that is another."""
    file = tmp_path / "token"
    file.write_text("right")
    bench = await make(api__max_requests_per_s=2, api__token_file=file)
    body, holder = {"mode": "off", "reason": "x"}, {"authorization": "Bearer right"}
    for headers in ({}, {"authorization": "Bearer wrong"}):
        await bench.api.get("/v1/status", headers=headers)
        for _ in range(4):
            refused = await bench.api.put("/v1/override", json=body, headers=headers)
    assert refused.status_code == 429
    assert (await bench.api.put("/v1/override", json=body, headers=holder)).status_code == 200
    assert (await bench.api.get("/v1/status", headers=holder)).status_code == 200


async def test_a_body_that_trickles_is_cut_off(make):
    """A client that sends a byte now and then holds no place."""
    bench = await make(api__body_timeout_s=0.05)

    async def slowly():
        yield b"{"
        await asyncio.sleep(5)

    answer = await bench.api.put("/v1/override", content=slowly())
    assert answer.status_code == 408


@pytest.mark.parametrize(
    "host", ["evil.example:9470", "evil.example", "127.0.0.1.evil.example", "[::2", "[evil.example]:80", ""]
)
async def test_a_page_of_a_rebound_name_reads_nothing_and_gives_no_orders(make, host):
    """DNS rebinding makes a page same-origin with 127.0.0.1; an address or localhost cannot be rebound."""
    bench = await make()
    body = {"mode": "off", "reason": "x"}
    answer = await bench.api.put("/v1/override", json=body, headers={"host": host})
    assert answer.status_code == 403
    assert (await bench.api.delete("/v1/override", headers={"host": host})).status_code == 403
    assert (await bench.api.get("/v1/status", headers={"host": host})).status_code == 403
    for good in ("localhost:9470", "LOCALHOST", "127.0.0.1", "[::1]:9470", "10.2.3.4:9470"):
        assert (await bench.api.put("/v1/override", json=body, headers={"host": good})).status_code == 200


async def test_a_configured_name_may_be_asked_and_its_page_may_give_orders(make):
    """A proxy in front; the Host that it sends on may be its own name or ours."""
    bench = await make(api__allowed_hosts='["Specgov.corp"]')
    body = {"mode": "off", "reason": "x"}
    for host in ("specgov.corp", "127.0.0.1:9470"):
        headers = {"host": host, "origin": "https://specgov.corp"}
        assert (await bench.api.put("/v1/override", json=body, headers=headers)).status_code == 200
    assert (await bench.api.get("/v1/status", headers={"host": "other.corp"})).status_code == 403


@pytest.mark.parametrize(
    ("origin", "code"),
    [
        ("https://evil.example", 403),
        ("null", 403),
        ("http://127.0.0.1:3000", 403),
        ("http://127.0.0.1:9470", 200),
        (None, 200),
    ],
)
async def test_orders_of_another_sites_page_are_refused_without_a_token(make, origin, code):
    """Another port is another site; the status page and curl are not."""
    bench = await make()
    headers = {"origin": origin} if origin else {}
    body = {"mode": "off", "reason": "x"}
    assert (await bench.api.put("/v1/override", json=body, headers=headers)).status_code == code
    assert (await bench.api.delete("/v1/override", headers=headers)).status_code == code
    assert (await bench.api.get("/v1/status", headers=headers)).status_code == 200


@pytest.mark.parametrize(
    ("content_type", "content"),
    [
        ("text/plain", b'{"mode": "off", "reason": "x"}'),
        ("application/x-www-form-urlencoded", b"mode=off&reason=x"),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\ncontent-disposition: form-data; name="mode"\r\n\r\noff\r\n--x--',
        ),
    ],
)
async def test_what_a_page_of_another_site_can_send_changes_nothing(make, content_type, content):
    """CSRF: no cookies, no CORS, and of what a browser sends without asking first nothing is an order."""
    bench = await make()
    headers = {"content-type": content_type, "origin": "https://evil.example"}
    for method in ("POST", "GET", "HEAD"):
        await bench.api.request(method, "/v1/override", content=content, headers=headers)
    asked = {"origin": "https://evil.example", "access-control-request-method": "PUT"}
    preflight = await bench.api.options("/v1/override", headers=asked)
    assert preflight.status_code >= 400
    assert not [name for name in preflight.headers if name.startswith("access-control-")]
    assert (await bench.api.put("/v1/override", content=content, headers=headers)).status_code == 403
    assert (await bench.api.get("/v1/override")).json()["mode"] == "auto"


async def test_a_hostile_reason_comes_back_as_data_only(make):
    """JSON with its own media type, no sniffing, and a page whose policy runs no inline script."""
    bench = await make()
    order = {"mode": "off", "reason": HOSTILE, "actor": HOSTILE}
    assert (await bench.api.put("/v1/override", json=order)).status_code == 200
    await bench.tick()
    for path in ("/v1/status", "/v1/override", "/v1/decisions", "/v1/explain", "/v1/policy"):
        answer = await bench.api.get(path)
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
    assert (await bench.api.get("/v1/override")).json()["reason"] == HOSTILE
    assert HOSTILE not in (await bench.api.get("/metrics")).text
    policy = (await bench.api.get("/")).headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_the_pages_scripts_make_no_markup_of_text():
    """`innerHTML` and its kin are nowhere; tests/e2e shows a hostile reason to a real browser."""
    for script in Path(wiring.__file__).parent.joinpath("ui").glob("*.js"):
        text = script.read_text()
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text
        )


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254",
        "http://[fe80::1]:30000",
        "http://user:secret@engine:30000",
        "file:///etc/passwd",
        "gopher://x",
        "http://engine:30000/admin",
        "http://engine:30000?x=1",
        "http://",
        "unix:/run/docker.sock",
    ],
)
def test_an_engine_url_that_leads_elsewhere_is_refused(url):
    """Other schemes, credentials, paths and the addresses where clouds keep credentials."""
    with pytest.raises(SettingsError, match="url must"):
        load(flags={"engine": {"url": url}}, environ={})


async def test_a_redirect_is_not_followed_and_no_key_goes_elsewhere(tmp_path):
    """Nor is a proxy of the environment asked."""
    asked = []

    def handler(request):
        asked.append(request.url.host)
        return httpx.Response(307, headers={"location": "http://elsewhere/v1/loads"})

    settings = load(flags={"engine": {"url": "http://engine:1", "api_key": "k"}}, environ={})
    client = wiring.make_client(settings.engine, httpx.MockTransport(handler))
    with pytest.raises(Exception, match="HTTP 307"):
        await client.loads()
    assert asked == ["engine"]
    await client.aclose()


@pytest.mark.parametrize(
    ("api", "rule"),
    [
        ({"host": "0.0.0.0"}, "host must be loopback without token"),
        ({"host": "::"}, "host must be loopback without token"),
        ({"read_token": "x"}, "read_token must be left out unless protect_reads"),
        ({"tls_cert_file": "x"}, "must be set together"),
        ({"tls_client_ca_file": "x"}, "without tls_cert_file"),
    ],
)
def test_settings_that_would_leave_a_door_open_are_refused(api, rule):
    """At the start, with the remedy."""
    with pytest.raises(SettingsError, match=rule):
        load(flags={"api": api}, environ={})


class Authority:
    """A certificate authority for one test."""

    def __init__(self, folder):
        self.folder = folder
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = self._sign("test CA", self.key.public_key(), ca=True)
        self.file = folder / "ca.pem"
        self.file.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))

    def _sign(self, name, public_key, *, ca=False):
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        issuer = subject if ca else self.certificate.subject
        now = dt.datetime.now(dt.UTC)
        local = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(local), critical=False)
            .sign(self.key, hashes.SHA256())
        )

    def issue(self, name):
        """PEM files (certificate, key)."""
        key = ec.generate_private_key(ec.SECP256R1())
        pem, encoding = self.folder / f"{name}.pem", serialization.Encoding.PEM
        pem.write_bytes(self._sign(name, key.public_key()).public_bytes(encoding))
        key_file = self.folder / f"{name}.key"
        form, none = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        key_file.write_bytes(key.private_bytes(encoding, form, none))
        return pem, key_file


@pytest.mark.slow
async def test_the_api_over_mutual_tls(make, tmp_path):
    """With a client's certificate: served, the health check too.  Without one or in plain HTTP: not."""
    authority = Authority(tmp_path)
    cert, key = authority.issue("server")
    client_cert, client_key = authority.issue("client")
    bench = await make(
        api__tls_cert_file=str(cert), api__tls_key_file=str(key), api__tls_client_ca_file=str(authority.file)
    )
    listener = serving.listen(ApiSettings(port=0))
    port = listener.getsockname()[1]
    stop = asyncio.Event()
    task = asyncio.create_task(serving.serve(bench.assembly, listener, stop=stop))
    trusting = ssl.create_default_context(cafile=authority.file)
    showing = ssl.create_default_context(cafile=authority.file)
    showing.load_cert_chain(client_cert, client_key)
    url = f"https://127.0.0.1:{port}/healthz"
    assert await fetch(url, showing) == 200
    for wrong in (trusting, ssl.create_default_context()):
        with pytest.raises(httpx.TransportError):
            await fetch(url, wrong, patience_s=0)
    with pytest.raises(httpx.TransportError):
        await fetch(url.replace("https", "http"), showing, patience_s=0)
    both = tmp_path / "both.pem"
    both.write_bytes(client_cert.read_bytes() + client_key.read_bytes())
    root = url.removesuffix("/healthz")
    assert await asyncio.to_thread(health_check.problem, root, str(both)) is None
    assert await asyncio.to_thread(health_check.problem, root) is not None
    stop.set()
    await task


async def fetch(url, context, patience_s=10.0):
    deadline_s = asyncio.get_running_loop().time() + patience_s
    async with httpx.AsyncClient(verify=context, trust_env=False) as http:
        while True:
            try:
                return (await http.get(url)).status_code
            except httpx.ConnectError:
                if asyncio.get_running_loop().time() >= deadline_s:
                    raise
                await asyncio.sleep(0.05)


def test_a_renewed_certificate_is_read_and_a_bad_one_is_not_used(tmp_path, caplog):
    """For new connections; a broken file leaves the old certificate in use."""
    authority = Authority(tmp_path)
    cert, key = authority.issue("server")
    tls = server_tls(ApiSettings(tls_cert_file=cert, tls_key_file=key))
    cert.write_text("not a certificate")
    tls.refresh()
    assert "the old one stays" in caplog.text
    caplog.set_level(logging.INFO)
    authority.issue("server")
    tls.refresh()
    assert "read again" in caplog.text
    with pytest.raises(SettingsError, match=r"api\.tls_\*"):
        server_tls(ApiSettings(tls_cert_file=tmp_path / "none", tls_key_file=key))


def test_an_engine_of_a_private_authority_can_be_checked(tmp_path):
    """`engine.ca_file` is used, and only it."""
    authority = Authority(tmp_path)
    context = wiring.trust(authority.file, "https://engine")
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert [dict(x[0] for x in ca["subject"])["commonName"] for ca in context.get_ca_certs()] == ["test CA"]
    with pytest.raises(SettingsError, match=r"engine\.ca_file must be"):
        wiring.trust(tmp_path / "none", "https://engine")


def test_an_engine_in_the_clear_needs_no_certificates_and_trusts_none():
    """Without TLS no bundle is read; were TLS to come of it all the same, nobody would be believed."""
    context = wiring.trust(None, "http://engine:30000")
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.get_ca_certs() == []
    assert wiring.trust(None, "https://engine") is True


async def test_a_token_file_that_becomes_empty_is_said_and_is_over_once_it_is_filled(make, tmp_path, caplog):
    """Else nobody can give an order, and nobody knows before the night in which one is needed."""
    file = tmp_path / "token"
    file.write_text("secret\n")
    bench = await make(api__token_file=str(file))
    await bench.tick()
    assert "token_empty" not in bench.conditions()
    file.write_text("")
    await bench.tick()
    assert "token_empty" in bench.conditions()
    state = (await bench.api.get("/v1/status")).json()
    said = next(each for each in state["conditions"] if each["condition"] == "token_empty")
    assert said["message"] == f"{file} is empty: no token matches"
    assert f"the token file {file} is empty: there is no token to accept or to send" in caplog.messages
    file.write_text("another\n")
    await bench.tick()
    assert "token_empty" not in bench.conditions()
