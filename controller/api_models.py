"""Bodies of the REST API that carry rules of their own."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from controller.order_rules import MAX_DEPTH, MAX_TTL_S, MIN_TTL_S
from controller.order_text import Printable, Why
from controller.sidecar import OverrideRequest
from policies.types import Mode


class OverrideBody(BaseModel):
    """What `PUT /v1/override` takes."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    mode: Mode
    """`off`: depth 0 at every batch size.  `on`: `depth`, or the deepest built.  `native`: SGLang's own
    policy.  `no_deeper`, `no_shallower`: the policy, which may not go beyond what is in force when the
    order is given.  `auto`: the policy; ends this pod's order, and a crash loop's pin; where the order in
    force is the fleet's, suspends that here until it changes or ends."""
    depth: Annotated[int, Field(ge=1, le=MAX_DEPTH, strict=True)] | None = None
    """Draft depth for mode `on`; a built one."""
    ttl_s: Annotated[float, Field(ge=MIN_TTL_S, le=MAX_TTL_S, allow_inf_nan=False, strict=True)] | None = None
    """Seconds after which the order ends by itself; null: never.  With `auto` only while a fleet's order is
    in force, which this pod then leaves for so long at most."""
    reason: Why
    """Why, not blank; stands in the decision log and the status."""
    actor: Printable = ""
    """Who."""

    def request(self) -> OverrideRequest:
        """The same for the sidecar."""
        return OverrideRequest(self.mode, self.depth, self.ttl_s, self.reason, self.actor)


class DecisionRow(BaseModel):
    """One row of the decision log."""

    id: int
    at_unix_s: float
    kind: str
    reason: str
    body: dict[str, Any]


class DecisionPage(BaseModel):
    """Rows, newest first."""

    decisions: list[DecisionRow]
    next_before: int | None
    """Give this as `before` for the next page; null: there is none."""


class ErrorDetail(BaseModel):
    """What is wrong, and where."""

    field: str | None
    message: str


class ErrorBody(BaseModel):
    """The body of every refusal."""

    error: ErrorDetail


Kind = Literal["decision", "override", "event"]
