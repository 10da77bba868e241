"""Two cost profiles from published numbers alone: a very large int4 MoE on 8 Blackwell GPUs, EAGLE-3.

Published: one stream gives 96.1 tok/s with speculation, 5.9 % more than without; with many streams the
server saturates at 773 tok/s without speculation and at 354 with it; the gap is over 2x from 30
streams on.  Another figure of the same report has speculation 15 % *behind* at one stream, in the parallel
benchmark; the two cannot be one curve, so there are two profiles.

A step's time is taken as the p-norm of a floor and of work in proportion to the batch,

    T(b) = (floor^p + (b * work)^p)^(1/p)

the usual smooth maximum of memory-bound and compute-bound (p = 1: sum, p -> infinity: maximum).  Per row,
saturation gives work = E / saturated tok/s and one stream gives T(1) = E / tok/s, which leaves p, common to
both rows: the one for which the gap is 2x at 30 streams.

E, the tokens per request and step, is 1 without speculation.  With it, only E / T can be known from
throughput; the rows are written for two drafts accepted with 0.6 each (E = 1 + 0.6 + 0.36 = 1.96), so replay
them with `--acceptance 0.6`.  SGLang's own off was not published, and has no row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

ACCEPTANCE = 0.6
DEPTH = 2
BATCH_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256)
SATURATED_OFF_TOK_S = 773.0
SATURATED_ON_TOK_S = 354.0
ONE_STREAM_ON_TOK_S = 96.1
GAP_STREAMS, GAP = 30, 2.0
READINGS = {"blackwell_moe_tp8": 1.059, "blackwell_moe_tp8_parallel": 1 / 1.15}
"""Profile name, and what speculation does to the throughput of one stream."""


@dataclass(frozen=True, slots=True)
class _Curve:
    """Step time of one row, for a given p."""

    tokens: float
    one_stream_tok_s: float
    saturated_tok_s: float

    def seconds(self, batch: int, p: float) -> float:
        work = self.tokens / self.saturated_tok_s
        floor_p = (self.tokens / self.one_stream_tok_s) ** p - work**p
        return float((floor_p + (batch * work) ** p) ** (1 / p))

    def tok_s(self, batch: int, p: float) -> float:
        return batch * self.tokens / self.seconds(batch, p)


def derive(name: str) -> dict[str, Any]:
    """The profile called `name` (one of `READINGS`), in the form of a profile file."""
    one_stream_off = ONE_STREAM_ON_TOK_S / READINGS["blackwell_moe_tp8"]
    tokens = 1 + sum(ACCEPTANCE**j for j in range(1, DEPTH + 1))
    off = _Curve(1.0, one_stream_off, SATURATED_OFF_TOK_S)
    on = _Curve(tokens, one_stream_off * READINGS[name], SATURATED_ON_TOK_S)
    p = _solve(off, on)
    rows = {"plain": off, f"depth_{DEPTH}": on}
    return {
        "schema": 1,
        "name": name,
        "gpu": "8 x NVIDIA Blackwell",
        "model": "very large MoE, int4; EAGLE3 draft, 2 steps",
        "tensor_parallel": 8,
        "derived": True,
        "acceptance": ACCEPTANCE,
        "step_ms": {
            row: {str(b): round(curve.seconds(b, p) * 1e3, 3) for b in BATCH_SIZES}
            for row, curve in rows.items()
        },
        "prefill": {"fixed_ms": 0, "ms_per_1k_tokens": 0, "draft_ms_per_request": 0},
        "notes": "Not measured: derived from published throughput; published_case.py beside this folder says "
        f"how (p = {p:.3f}). Prefill costs nothing here: it is in the published throughput already.",
    }


def _solve(off: _Curve, on: _Curve) -> float:
    """Find p by bisection; the gap at `GAP_STREAMS` grows with it."""
    low, high = 1.0, 8.0
    for _ in range(60):
        p = (low + high) / 2
        wide = off.tok_s(GAP_STREAMS, p) / on.tok_s(GAP_STREAMS, p) > GAP
        low, high = (low, p) if wide else (p, high)
    return low
