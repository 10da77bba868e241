"""A trace by phase, its arms side by side: throughput, and how long the policy takes to adapt."""

from __future__ import annotations

import collections
from collections.abc import Sequence

POLICY = "governed"
FOR_GOOD = 0.98
"""A depth is in force for good from when on so many of a phase's bins have it; a probe is in few."""


def windows_of(results: dict, plans: Sequence[str]) -> dict[str, list[dict]]:
    """By arm, the phases in their order.

    Raises `ValueError` when two plans have the same arm, or an arm has not the phases of the first one: then
    they do not stand side by side.
    """
    arms: dict[str, list[dict]] = {}
    for plan in plans:
        traced = [w for w in results[plan]["windows"] if w.get("trace")]
        for arm in dict.fromkeys(w["trace"] for w in traced):
            if arm in arms:
                raise ValueError(f"an arm must be in one of the plans, {arm!r} is in two of {list(plans)}")
            arms[arm] = [w for w in traced if w["trace"] == arm]
    lengths = {arm: [_phase(w) for w in found] for arm, found in arms.items()}
    for arm, found in lengths.items():
        if found != next(iter(lengths.values())):
            raise ValueError(f"all arms must have the same phases, {arm!r} has {found}")
    return arms


def _phase(window: dict) -> tuple:
    return window["phase"], window["C"], window["acceptance"], round(window["to_s"] - window["from_s"])


def by_phase(arms: dict[str, list[dict]]) -> list[dict]:
    """A row a phase: tokens per second of each arm, the best arm, and the policy beside the best other."""
    rows = []
    for found in zip(*arms.values(), strict=True):
        tok_s = {arm: w["tok_s"] for arm, w in zip(arms, found, strict=True)}
        others = [rate for arm, rate in tok_s.items() if arm != POLICY]
        rows.append(
            {key: found[0][key] for key in ("phase", "C", "acceptance")}
            | {
                "tok_s": tok_s,
                "best": max(tok_s, key=lambda arm, tok_s=tok_s: tok_s[arm]),
                "to_best_other": tok_s[POLICY] / max(others) if POLICY in tok_s and others else None,
            }
        )
    return rows


def adapting(windows: list[dict]) -> list[dict]:
    """Of every phase the depth it comes from, the depth it settles on, and the seconds until then."""
    rows, before = [], None
    for w in windows:
        depth, seconds = settled(w["depth_over_time"])
        rows.append({"phase": w["phase"], "from": before, "to": depth, "seconds": seconds})
        before = depth
    return rows


def settled(depth_over_time: list) -> tuple[int | None, float | None]:
    """The most frequent depth of a phase's second half, and when it came into force for good, seconds.

    The mean depth of each bin counts as the depth next to it: a probe of a few steps is no change.
    """
    bins = [(at_s, round(depth)) for at_s, _, depth in depth_over_time]
    if not bins:
        return None, None
    depth = collections.Counter(d for _, d in bins[len(bins) // 2 :]).most_common(1)[0][0]
    for i, (at_s, found) in enumerate(bins):
        rest = [d == depth for _, d in bins[i:]]
        if found == depth and sum(rest) >= FOR_GOOD * len(rest):
            return depth, at_s
    return depth, None
