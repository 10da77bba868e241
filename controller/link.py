"""What stands at the other end: an engine that can be controlled, or why not.  Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from controller.control_state import PROTOCOL, ControlState
from controller.errors import (
    EngineBadAnswerError,
    EngineError,
    EngineNotFoundError,
    EngineUnauthorizedError,
)
from controller.exposition import ServerInfo


class Link(StrEnum):
    """State of the connection to the engine's control side."""

    READY = "ready"
    UNREACHABLE = "unreachable"
    UNAUTHORIZED = "unauthorized"
    NO_PLUGIN = "no_plugin"
    SPECULATION_OFF = "speculation_off"
    NOT_CONTROLLABLE = "not_controllable"
    WRONG_VERSION = "wrong_version"
    NOT_SGLANG = "not_sglang"


PREFLIGHT = "specgov preflight"
"""Where this stands in what mends something, it is made to name the engine before it is shown."""
REMEDY = {
    Link.READY: "",
    Link.UNREACHABLE: "check engine.url and that the server is up: curl URL/health",
    Link.UNAUTHORIZED: "set engine.admin_api_key_file (or engine.api_key_file) to the server's key",
    Link.NO_PLUGIN: "specgov export-hooks DIR, then restart SGLang with PYTHONPATH=DIR",
    Link.SPECULATION_OFF: "start SGLang with the flags of: specgov engine-flags --depths 0,1,2,4",
    Link.NOT_CONTROLLABLE: f"run: {PREFLIGHT}",
    Link.WRONG_VERSION: "install the same specgov release beside and inside SGLang",
    Link.NOT_SGLANG: "check engine.url: what answers there is not SGLang",
}
"""What mends each state."""


SILENT = (Link.UNREACHABLE, Link.UNAUTHORIZED, Link.NOT_SGLANG)
"""States in which nothing can be said about what the engine follows, or who holds its lease."""


@dataclass(frozen=True, slots=True)
class LinkState:
    """A state and the sentence that explains it."""

    link: Link
    detail: str

    @property
    def remedy(self) -> str:
        """What mends it; empty when nothing needs mending."""
        return REMEDY[self.link]


def classify(
    control: ControlState | None,
    error: EngineError | None,
    info: ServerInfo | None,
    loads_error: EngineError | None = None,
) -> LinkState:
    """Judge the latest answer of `GET /speculation`, with what `/server_info` says if that is known.

    `loads_error`: of `/v1/loads`, which every SGLang has; tells one without the plugin from another server.
    """
    if control is None:
        return _from_error(error, info, loads_error)
    if control.protocol != PROTOCOL:
        detail = f"the plugin speaks protocol {control.protocol}, this sidecar {PROTOCOL}"
        return LinkState(Link.WRONG_VERSION, detail)
    if control.controllable:
        return LinkState(Link.READY, f"SGLang {control.sglang_version}, plugin {control.plugin_version}")
    if info is not None and info.version and info.speculative_algorithm is None:
        return LinkState(Link.SPECULATION_OFF, "the server runs without speculation")
    return LinkState(Link.NOT_CONTROLLABLE, control.reason or "the plugin gives no reason")


def speaks_otherwise(error: EngineError | None) -> bool:
    """Whether what answered has not got what every SGLang has."""
    return isinstance(error, EngineNotFoundError | EngineBadAnswerError)


def _from_error(
    error: EngineError | None, info: ServerInfo | None, loads_error: EngineError | None
) -> LinkState:
    if isinstance(error, EngineNotFoundError):
        if info is None and speaks_otherwise(loads_error):
            return LinkState(Link.NOT_SGLANG, "neither /speculation nor /v1/loads is there")
        return LinkState(Link.NO_PLUGIN, _without_plugin(info))
    if isinstance(error, EngineUnauthorizedError):
        return LinkState(Link.UNAUTHORIZED, str(error))
    if isinstance(error, EngineBadAnswerError):
        return LinkState(Link.NOT_SGLANG, str(error))
    detail = f"the engine does not answer: {error}" if error else "not asked yet"
    return LinkState(Link.UNREACHABLE, detail)


def _without_plugin(info: ServerInfo | None) -> str:
    if info is None:
        return "the server has no /speculation endpoint"
    algorithm = info.speculative_algorithm or "no speculation"
    return f"SGLang {info.version} with {algorithm} has no /speculation endpoint: the plugin is not loaded"
