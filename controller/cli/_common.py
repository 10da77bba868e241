"""What the commands share: talking to a running sidecar, printing."""

from __future__ import annotations

import getpass
import json
import os
import re
import ssl
import sys
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console

from controller.errors import BadRequestError, SidecarError

out, err = Console(highlight=False), Console(stderr=True, highlight=False)

Url = Annotated[str, typer.Option("--url", envvar="SPECGOV_URL", help="The sidecar's API.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", envvar="SPECGOV_TOKEN_FILE", help="File with the API's token.")
]
DEFAULT_URL = "http://127.0.0.1:9470"


def show_json(value: Any) -> None:
    """Print `value` as JSON, for programs."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def call(method: str, url: str, path: str, token_file: Path | None, **request: Any) -> dict[str, Any]:
    """The JSON answer of a running sidecar; raises `SidecarError`."""
    try:
        with httpx.Client(base_url=url, timeout=10, trust_env=False, verify=trust()) as http:
            answer = http.request(method, path, headers=_headers(token_file), **request)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        hint = "is it running, and is --url right?"
        raise SidecarError(f"no sidecar answers at {url}: {error}; {hint}") from None
    try:
        body = answer.json()
    except ValueError:
        what = f"HTTP {answer.status_code}, not JSON"
        raise SidecarError(
            f"{url} does not answer like a specgov sidecar ({what}): is --url right?"
        ) from None
    if answer.is_success and isinstance(body, dict):
        return body
    fault = body.get("error") if isinstance(body, dict) else None
    raise SidecarError(fault["message"] if isinstance(fault, dict) else f"{url}: HTTP {answer.status_code}")


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
    return {"authorization": f"Bearer {token}"} if token else {}


def me() -> str:
    """Who types."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"


def duration_s(text: str) -> float:
    """Seconds of `90`, `90s`, `30m`, `8h`, `2d`; raises `typer.BadParameter`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text.strip())
    if not found:
        raise typer.BadParameter(f"must be a number with s, m, h or d, such as 30m, got {text!r}")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}[found[2]]
