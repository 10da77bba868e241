"""Keeps the account of `benefit.py` turn by turn, as metrics and for the API."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter

from controller.benefit import Benefit, Reference
from controller.loop import TickResult
from controller.recorders import arm_to_json
from controller.steering import Lease


class BenefitRecorder:
    """A recorder; ratios over any window are made of its counters by Prometheus."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.benefit = Benefit()
        self._since_unix_s: float | None = None
        labels = ["against"]
        self._tokens = Counter(
            "specgov_compared_tokens_total",
            "Tokens emitted while specgov governed and the reference was known",
            labels,
            registry=registry,
        )
        self._reference = Counter(
            "specgov_reference_tokens_total",
            "Tokens that the reference would have emitted in the same time, by its measured speed",
            labels,
            registry=registry,
        )
        self._error = Counter(
            "specgov_reference_error_tokens_total",
            "Standard error of the reference's tokens, added up linearly",
            labels,
            registry=registry,
        )
        self.metrics = [self._tokens, self._reference, self._error]
        for reference in Reference:
            for metric in self.metrics:
                metric.labels(reference)

    def record(self, result: TickResult) -> None:
        """Account for a turn."""
        if self._since_unix_s is None:
            self._since_unix_s = result.now_unix_s
        before = {reference: _sums(self.benefit, reference) for reference in Reference}
        seen = result.observation
        # What was read is of before this turn: governed, if the engine then had a plan, and it is ours.
        governed = seen.in_force is not None and result.steered.lease is Lease.HELD
        self.benefit.record(seen.cells, seen.built, governed=governed)
        for reference, old in before.items():
            moved = zip(self.metrics, _sums(self.benefit, reference), old, strict=True)
            for metric, new, was in moved:
                metric.labels(reference).inc(new - was)

    def to_json(self) -> dict[str, Any]:
        """The balances since the first turn, over which share of all tokens, and every measured speed."""
        return {
            "since_unix_s": self._since_unix_s,
            "against": {str(reference): self._balance(reference) for reference in Reference},
            "measured": [
                {**arm_to_json(arm), "batch_bucket": bucket, "tok_s": speed.tok_s, "se_tok_s": speed.se_tok_s}
                for bucket in self.benefit.buckets()
                for arm, speed in sorted(self.benefit.speeds(bucket).items())
            ],
        }

    def _balance(self, reference: Reference) -> dict[str, float | None]:
        tokens, reference_tokens, error = _sums(self.benefit, reference)
        known = reference_tokens > 0
        return {
            "tokens": tokens,
            "reference_tokens": reference_tokens,
            "gain": tokens / reference_tokens - 1 if known else None,
            "se_gain": error * tokens / reference_tokens**2 if known else None,
            "share": self.benefit.share(reference),
        }


def _sums(benefit: Benefit, reference: Reference) -> tuple[float, float, float]:
    balance = benefit.balances[reference]
    return balance.tokens, balance.reference_tokens, balance.error_tokens
