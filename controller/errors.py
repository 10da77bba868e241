"""What can go wrong, as one tree.

SpecgovError
|-- SettingsError           a setting breaks its rule: stops startup
|-- StoreError              the state database cannot be used
|-- OverrideError           an override that cannot be carried out: told to its sender
`-- EngineError             a request to the engine failed: counted, told, survived
    |-- EngineUnreachable       no answer: refused, reset, name not found
    |-- EngineTimeout           no complete answer in time; a PUT may have been carried out all the same
    |-- EngineBadAnswer         an answer that is not what was asked for: HTML, too large, not JSON
    `-- EngineRefused           a well-formed refusal, with its HTTP status
        |-- EngineNotFound          404: no such endpoint (SGLang without the plugin)
        |-- EngineUnauthorized      401, 403: key missing or wrong
        |-- EngineConflict          409: sequence not newer, or another holder's lease is live
        |-- EngineRejectedPlan      413, 422, 400: the plan itself
        `-- EngineImpossible        503: the plugin is there, control is not possible
"""

from __future__ import annotations


class SpecgovError(Exception):
    """Base of all errors of the sidecar."""


class SettingsError(SpecgovError):
    """A setting breaks its rule; the message names field, rule, value and remedy."""


class StoreError(SpecgovError):
    """The state database cannot be read or written."""


class OverrideError(SpecgovError):
    """An override that cannot be carried out; `field` is the JSON path of what is wrong."""

    def __init__(self, field: str | None, message: str) -> None:
        super().__init__(message)
        self.field = field


class EngineError(SpecgovError):
    """A request to the engine failed."""

    label = "error"
    """Value of the `error` label in metrics."""


class EngineUnreachable(EngineError):
    """No answer: refused, reset, name not found."""

    label = "unreachable"


class EngineTimeout(EngineError):
    """No complete answer in time; a PUT may have been carried out all the same."""

    label = "timeout"


class EngineBadAnswer(EngineError):
    """An answer that is not what was asked for: HTML, too large, not JSON."""

    label = "bad_answer"


class EngineRefused(EngineError):
    """A well-formed refusal; `status` is its HTTP status."""

    label = "refused"

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class EngineNotFound(EngineRefused):
    """404: no such endpoint, which for `/speculation` means SGLang without the plugin."""

    label = "not_found"


class EngineUnauthorized(EngineRefused):
    """401 or 403: the key is missing or wrong."""

    label = "unauthorized"


class EngineConflict(EngineRefused):
    """409: the sequence is not newer, or another holder's lease is live."""

    label = "conflict"


class EngineRejectedPlan(EngineRefused):
    """400, 413 or 422: the plan itself was refused."""

    label = "rejected"


class EngineImpossible(EngineRefused):
    """503: the plugin is there, but control is not possible."""

    label = "impossible"
