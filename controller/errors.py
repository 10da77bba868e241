"""What can go wrong, as one tree.

SpecgovError
|-- SettingsError           a setting breaks its rule: stops startup
|-- BadRequestError         what a command was asked for cannot be had: a file, a name, a number
|-- StoreError              the state database cannot be used
|   `-- StoreInUseError         another process uses it
|-- KnowledgeFileError      a file of what was learned cannot be used
|-- SidecarError            a command was not answered by a sidecar, or refused
|-- OverrideError           an override that cannot be carried out: told to its sender
`-- EngineError             a request to the engine failed: counted, told, survived
    |-- EngineUnreachableError       no answer: refused, reset, name not found
    |-- EngineTimeoutError           no complete answer in time; a PUT may have been carried out all the same
    |-- EngineBadAnswerError         an answer that is not what was asked for: HTML, too large, not JSON
    `-- EngineRefusedError           a well-formed refusal, with its HTTP status
        |-- EngineNotFoundError          404: no such endpoint (SGLang without the plugin)
        |-- EngineUnauthorizedError      401, 403: key missing or wrong
        |-- EngineConflictError          409: sequence not newer, or another holder's lease is live
        |-- EngineRejectedPlanError      413, 422, 400: the plan itself
        `-- EngineImpossibleError        503: the plugin is there, control is not possible
"""

from __future__ import annotations


class SpecgovError(Exception):
    """Base of all errors of the sidecar."""


class SettingsError(SpecgovError):
    """A setting breaks its rule; the message names field, rule, value and remedy."""


class BadRequestError(SpecgovError):
    """What a command was asked for cannot be had; the message names option, rule, value and remedy."""


class StoreError(SpecgovError):
    """The state database cannot be read or written."""


class StoreInUseError(StoreError):
    """Another process holds the state database, and may write to it at any moment."""


class KnowledgeFileError(SpecgovError):
    """A file of what was learned cannot be used; the message names the field."""


class SidecarError(SpecgovError):
    """The sidecar that a command asked is away, or has refused."""


class OverrideError(SpecgovError):
    """An override that cannot be carried out; `field` is the JSON path of what is wrong."""

    def __init__(self, field: str | None, message: str) -> None:
        super().__init__(message)
        self.field = field


class EngineError(SpecgovError):
    """A request to the engine failed."""

    label = "error"
    """Value of the `error` label in metrics."""


class EngineUnreachableError(EngineError):
    """No answer: refused, reset, name not found."""

    label = "unreachable"


class EngineTimeoutError(EngineError):
    """No complete answer in time; a PUT may have been carried out all the same."""

    label = "timeout"


class EngineBadAnswerError(EngineError):
    """An answer that is not what was asked for: HTML, too large, not JSON."""

    label = "bad_answer"


class EngineRefusedError(EngineError):
    """A well-formed refusal; `status` is its HTTP status."""

    label = "refused"

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class EngineNotFoundError(EngineRefusedError):
    """404: no such endpoint, which for `/speculation` means SGLang without the plugin."""

    label = "not_found"


class EngineUnauthorizedError(EngineRefusedError):
    """401 or 403: the key is missing or wrong."""

    label = "unauthorized"


class EngineConflictError(EngineRefusedError):
    """409: the sequence is not newer, or another holder's lease is live."""

    label = "conflict"


class EngineRejectedPlanError(EngineRefusedError):
    """400, 413 or 422: the plan itself was refused."""

    label = "rejected"


class EngineImpossibleError(EngineRefusedError):
    """503: the plugin is there, but control is not possible."""

    label = "impossible"
