"""What to type to reach the engine past the sidecar; keys are named, never shown.  Pure."""

from __future__ import annotations

import shlex
from pathlib import Path
from urllib.parse import quote

from controller.link import PREFLIGHT
from controller.settings import EngineSettings


def release_command(engine: EngineSettings, holder: str) -> str:
    """The `DELETE` that hands the engine back if `holder`, and nobody else, has the lease."""
    ca = f" --cacert {shlex.quote(str(engine.ca_file))}" if engine.ca_file else ""
    url = f"{engine.url.rstrip('/')}/speculation?holder={quote(holder, safe='/')}"
    return f"curl -X DELETE{ca}{_key(engine)} {shlex.quote(url)}"


def preflight_command(engine: EngineSettings) -> str:
    """What has this engine checked, and not the one of the default address."""
    return f"{PREFLIGHT} --engine {shlex.quote(engine.url.rstrip('/'))}"


def _key(engine: EngineSettings) -> str:
    """The header that `/speculation` asks for: of the admin key, else of the API key."""
    for value, file, name in (
        (engine.admin_api_key, engine.admin_api_key_file, "ADMIN_API_KEY"),
        (engine.api_key, engine.api_key_file, "API_KEY"),
    ):
        if value or file:
            return f' -H "Authorization: Bearer {_shown(file, name)}"'
    return ""


def _shown(file: Path | None, name: str) -> str:
    return f"$(cat {shlex.quote(str(file))})" if file else f"$SPECGOV_ENGINE__{name}"
