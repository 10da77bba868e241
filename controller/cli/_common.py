"""What the commands share: talking to a running sidecar, printing."""

from __future__ import annotations

import getpass
import json
import os
import re
import shlex
import ssl
import sys
import time
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console

from controller.errors import BadRequestError, SidecarError
from controller.order_rules import AGENT

out, err = Console(highlight=False), Console(stderr=True, highlight=False)

Url = Annotated[str, typer.Option("--url", envvar="SPECGOV_URL", help="The sidecar's API.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", envvar="SPECGOV_TOKEN_FILE", help="File with the API's token.")
]
DEFAULT_URL = "http://127.0.0.1:9470"
TRIES, RETRY_S = 10, 0.5
COMMAND = re.compile(r"specgov (?:override [a-z_]+|status|explain|decisions)\b")
"""One that asks a sidecar, up to where its options may stand."""
MEANWHILE = (
    "Without a sidecar the engine is back on its fallback within 15 s"
    " (the default of lease.lease_s): curl ENGINE/speculation tells"
)
OURS = {
    "/v1/status": "headline",
    "/v1/explain": "because",
    "/v1/decisions": "decisions",
    "/v1/override": "mode",
    "/v1/history": "samples",
    "/v1/benefit": "against",
}
"""By path, a field that tells a sidecar's answer from that of another server."""


def addressed(text: str, url: str, token_file: Path | None) -> str:
    """`text` with each command in it made to reach the sidecar that said it.

    The sidecar does not know under which address it was asked.  What the environment says need not be typed.
    """
    given = (
        ("--url", url, "SPECGOV_URL", DEFAULT_URL),
        ("--token-file", token_file, "SPECGOV_TOKEN_FILE", None),
    )
    options = "".join(
        f" {option} {shlex.quote(str(value))}"
        for option, value, variable, default in given
        if value != default and os.environ.get(variable) != str(value)
    )
    return COMMAND.sub(lambda found: found[0] + options, text)


def show_json(value: Any) -> None:
    """Print `value` as JSON, for programs."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def call(method: str, url: str, path: str, token_file: Path | None, **request: Any) -> dict[str, Any]:
    """The JSON answer of a running sidecar; raises `SidecarError`, for a broken rule `BadRequestError`.

    What was refused for coming too often was not done, and is asked `TRIES` times.
    """
    if not url.startswith(("http://", "https://")):
        raise BadRequestError(f"--url must begin with http:// or https://, got {url!r}")
    try:
        with httpx.Client(base_url=url, timeout=10, trust_env=False, verify=trust()) as http:
            for left in reversed(range(TRIES)):
                answer = http.request(method, path, headers=_headers(token_file), **request)
                if answer.status_code != HTTPStatus.TOO_MANY_REQUESTS or not left:
                    break
                time.sleep(RETRY_S)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        hint = "is it running, and is --url right?"
        raise SidecarError(f"no sidecar answers at {url}: {error}; {hint} {MEANWHILE}") from None
    try:
        body = answer.json()
    except ValueError:
        raise _stranger(url, f"HTTP {answer.status_code}, not JSON") from None
    if not answer.is_success:
        raise _refusal(url, answer.status_code, body, token_file)
    if not isinstance(body, dict) or OURS.get(path.partition("?")[0], "") not in {*body, ""}:
        raise _stranger(url, "other JSON")
    return body


def _refusal(url: str, code: int, body: Any, token_file: Path | None) -> SidecarError | BadRequestError:
    """What a sidecar refuses, in its own words; anything else comes from somebody else."""
    fault = body.get("error") if isinstance(body, dict) else None
    if not isinstance(fault, dict) or fault.keys() != {"field", "message"} or code == HTTPStatus.NOT_FOUND:
        return _stranger(url, f"HTTP {code}")
    if code == HTTPStatus.UNAUTHORIZED:
        hint = "put it in a file and name that with --token-file or SPECGOV_TOKEN_FILE"
        if token_file is not None:
            empty = not token_file.read_text(encoding="utf-8").strip()
            hint = f"{token_file} is empty" if empty else f"the one in {token_file} is another"
        return SidecarError(f"{url} asks for its token (HTTP 401): {hint}")
    broken_rule = code == HTTPStatus.UNPROCESSABLE_ENTITY
    return (BadRequestError if broken_rule else SidecarError)(fault["message"])


def _stranger(url: str, what: str) -> SidecarError:
    return SidecarError(
        f"{url} does not answer like a specgov sidecar ({what}): is --url right?"
        f" It is the root of the sidecar's API, such as {DEFAULT_URL}, not SGLang's"
    )


def trust() -> ssl.SSLContext | bool:
    """What an https sidecar must show (`SPECGOV_CA_FILE`) and is shown (`SPECGOV_CLIENT_CERT_FILE`)."""
    ca, cert = os.environ.get("SPECGOV_CA_FILE"), os.environ.get("SPECGOV_CLIENT_CERT_FILE")
    if not ca and not cert:
        return True
    try:
        context = ssl.create_default_context(cafile=ca or None)
        if cert:
            context.load_cert_chain(cert)
    except (OSError, ssl.SSLError) as error:
        rule = "SPECGOV_CA_FILE and SPECGOV_CLIENT_CERT_FILE must be PEM files"
        raise BadRequestError(f"{rule}, got {ca} and {cert}: {error}") from None
    return context


def _headers(token_file: Path | None) -> dict[str, str]:
    token = os.environ.get("SPECGOV_TOKEN")
    if token_file is not None:
        try:
            token = token_file.read_text(encoding="utf-8").strip()
        except OSError as error:
            rule = "--token-file must be a readable file"
            raise BadRequestError(f"{rule}, got {token_file}: {error.strerror}") from None
    agent = {"user-agent": AGENT}
    return agent | {"authorization": f"Bearer {token}"} if token else agent


def me() -> str:
    """Who types."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"


def duration_s(option: str, text: str) -> float:
    """Seconds of `90s`, `30m`, `8h`, `2d`; raises `BadRequestError`, which names `option`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if not found:
        rule = f"{option} must be a number with its unit, s, m, h or d, such as 30m"
        raise BadRequestError(f"{rule}, got {text!r}")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86_400}[found[2]]
