"""Windows put together: means with their intervals, and paired ratios between arms."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from statistics import fmean

from controller.bench.statistics import estimate, quantile, ratio
from figures.steplog import StepLog, rounded

GROUP = ("label", "C", "acceptance", "temperature", "arriving", "phase", "settling", "burst")
MOSTLY = 0.9
ARRIVING = " arriving"
KEPT_UP = 0.9
"""Share of its clients' requests that the server must have had, or the window measured the clients."""


def clients(requests: list[dict], from_s: float, to_s: float) -> dict:
    """Latencies of the requests that ended inside a span; TTFT of those whose first token came inside it.

    So the clients' own start, all at once and before the span, is in no TTFT.
    """
    ended = [r for r in requests if r["ended_s"] and from_s <= r["ended_s"] < to_s and not r["cancelled"]]
    good = [r for r in ended if not r["error"] and r["events"]]
    each = [(r["ended_s"] - r["started_s"]) * 1e3 / r["events"][-1][1] for r in good]
    streams = [r for r in good if r["streamed"] and len(r["events"]) == 2]
    begun = [r for r in requests if r["streamed"] and r["events"] and not r["error"]]
    ttft = [(r["events"][0][0] - r["started_s"]) * 1e3 for r in begun if from_s <= r["events"][0][0] < to_s]
    tpot = [(b[0] - a[0]) * 1e3 / (b[1] - a[1]) for a, b in (r["events"] for r in streams) if b[1] > a[1]]
    itl = [gap * 1e3 for r in requests for at_s, gap in r.get("gaps_s", ()) if from_s <= at_s < to_s]
    figures = {"ms_per_token": each, "ttft_ms": ttft, "tpot_ms": tpot, "itl_ms": itl}
    out = {f"{k}_p{q}": rounded(quantile(v, q / 100)) for k, v in figures.items() for q in (50, 99)}
    return {"finished": len(good), "errors": sum(bool(r["error"]) for r in ended), **out}


def same_round(window: dict) -> tuple:
    """What windows that are compared with each other have in common."""
    notes = ("acceptance", "phase", "settling", "round", "pass_number")
    return (window["C"], *(window.get(name) for name in notes))


def summary(windows: list[dict]) -> list[dict]:
    """Windows of the same label, concurrency and notes, together; ratios to `plain` pair the same round."""
    groups = collections.defaultdict(list)
    for w in windows:
        if w.get("tok_s"):
            groups[tuple(_note(w, k) for k in GROUP)].append(w)
    plain = {same_round(w): w["tok_s"] for w in windows if w["label"] == "plain" and w.get("tok_s")}
    out = []
    for key, group in groups.items():
        pairs = [(w["tok_s"], plain.get(same_round(w))) for w in group]
        pairs = [(a, b) for a, b in pairs if b]
        to_plain = ratio([a for a, _ in pairs], [b for _, b in pairs]) if pairs else None
        tok_s = estimate([w["tok_s"] for w in group])
        out.append(
            {
                **{k: v for k, v in zip(GROUP, key, strict=True) if v is not None},
                "windows": tok_s.n,
                "tok_s": round(tok_s.mean, 1),
                "tok_s_half_width": rounded(tok_s.half_width, 1),
                "ratio_to_plain": rounded(to_plain.mean, 4) if to_plain else None,
                "ratio_half_width": rounded(to_plain.half_width, 4) if to_plain else None,
                "step_ms_p50": rounded(quantile([w["step_ms_p50"] for w in group], 0.5)),
                "tokens_per_request_step": rounded(
                    estimate([w["tokens_per_request_step"] for w in group]).mean
                ),
                "errors": sum(w["clients"]["errors"] for w in group),
            }
        )
    return out


def steady(phases: list[dict]) -> float | None:
    """Tokens per second of the second half of each phase, each phase by its whole length.

    Compares traces of different lengths: a high load that ends takes as long to drain in a short phase as
    in a long one, and a policy as long to notice.
    """
    halves = [(w["to_s"] - w["from_s"], second_half(w)) for w in phases]
    if any(half is None for _, half in halves):
        return None
    return rounded(sum(s * (half or 0.0) for s, half in halves) / sum(s for s, _ in halves), 1)


def second_half(window: dict) -> float | None:
    """Mean of its seconds from the middle on; `None` when it does not know its seconds."""
    seconds = window.get("tok_s_by_second") or []
    return fmean(seconds[len(seconds) // 2 :]) if seconds else None


def _note(window: dict, key: str) -> object:
    """How well the sidecar knows the server says nothing about the other arms."""
    return None if key == "temperature" and window["label"] != "governed" else window.get(key)


def comparisons(records: list[dict], windows: list[dict]) -> list[dict]:
    """Paired ratios that a plan asked for (`compare`), by concurrency: throughput, and median step time."""
    out = []
    for wanted in (r for r in records if r["kind"] == "compare"):
        mine = {(w["C"], w.get("round")): w for w in windows if w["label"] == wanted["of"] and w.get("tok_s")}
        base = {(w["C"], w.get("round")): w for w in windows if w["label"] == wanted["to"] and w.get("tok_s")}
        for c in sorted({c for c, _ in mine.keys() & base.keys()}):
            pairs = [(mine[key], base[key]) for key in sorted(mine.keys() & base.keys()) if key[0] == c]
            found = {
                name: ratio([a[name] for a, _ in pairs], [b[name] for _, b in pairs])
                for name in ("tok_s", "step_ms_p50")
            }
            figures = {f"{name}_ratio": rounded(e.mean, 4) for name, e in found.items()}
            widths = {f"{name}_half_width": rounded(e.half_width, 4) for name, e in found.items()}
            out.append(
                {"of": wanted["of"], "to": wanted["to"], "C": c, "pairs": len(pairs), **figures, **widths}
            )
    return out


def goal(windows: list[dict]) -> list[dict]:
    """The sidecar's policy against the best other arm at each concurrency.

    The best is chosen by its mean over all its windows, so that a lucky one does not set the mark.  Windows
    of the same round are paired; those without a partner (cold, settled) stand against the best arm's mean.
    Cold windows, in which the load arrives, stand against those of other arms in which it did (`arriving`),
    where there are such.  Windows that the clients did not keep filled count for nobody.
    """
    mine = [w for w in windows if w.get("tok_s") and not w.get("trace") and _kept_up(w)]
    levels = dict.fromkeys((w["C"], w.get("acceptance")) for w in mine if w["label"] == "governed")
    return [row for c, p in levels for row in _goal_at(mine, c, p)]


def _goal_at(windows: list[dict], c: int, p: float | None) -> list[dict]:
    arms: dict[str, dict[tuple, list[float]]] = {}
    for w in windows:
        if _is_at(w, c, p):
            rounds = arms.setdefault(_arm(w), {})
            rounds.setdefault((w.get("round"), w.get("pass_number")), []).append(w["tok_s"])
    means = {name: {k: fmean(v) for k, v in rounds.items()} for name, rounds in arms.items()}
    all_others = {name: fmean(m.values()) for name, m in means.items() if not name.startswith("governed")}
    arriving = {name: mean for name, mean in all_others.items() if name.endswith(ARRIVING)}
    steady_others = {name: mean for name, mean in all_others.items() if name not in arriving}
    rows = []
    for name in (n for n in means if n.startswith("governed")):
        others = (name.endswith(" cold") and arriving) or steady_others
        if not others:
            continue
        best = max(others, key=lambda other, others=others: others[other])
        keys = sorted(means[name].keys() & means[best].keys(), key=str)
        paired = ratio([means[name][k] for k in keys], [means[best][k] for k in keys]) if keys else None
        share = paired.mean if paired else fmean(means[name].values()) / others[best]
        row = {
            "C": c,
            "acceptance": p,
            "arm": name,
            "best_other": best,
            "best_tok_s": rounded(others[best], 1),
            "depth_shares": _depth_shares(w for w in windows if _arm(w) == name and _is_at(w, c, p)),
        }
        width = rounded(paired.half_width, 4) if paired else None
        row |= _where_it_went(row["depth_shares"], others, best, means, name)
        rows.append(row | {"share": rounded(share, 4), "half_width": width, "pairs": len(keys)})
    return rows


def _where_it_went(
    shares: dict[str, float], others: dict[str, float], best: str, means: dict[str, dict], name: str
) -> dict:
    """What is lost by the choice of depth, and what stands between windows of the same depth.

    `choice`: the arm of the depth that the policy used in nine of ten steps or more, as a share of the best
    arm; `same_depth`: the policy's windows over those of that arm in the same rounds.  `None`: no such depth.
    """
    depth = next((d for d, share in shares.items() if share >= MOSTLY), None)
    suffix = ARRIVING if best.endswith(ARRIVING) else ""
    arm = None if depth is None else f"table/{'off-cold' if depth == '0' else f'depth-{depth}'}{suffix}"
    if arm not in others:
        return {"choice": None, "same_depth": None}
    keys = sorted(means[name].keys() & means[arm].keys(), key=str)
    same = fmean(means[name][k] for k in keys) / fmean(means[arm][k] for k in keys) if keys else None
    return {"choice": rounded(others[arm] / others[best], 4), "same_depth": rounded(same, 4)}


def _is_at(window: dict, c: int, p: float | None) -> bool:
    return (window["C"], window.get("acceptance")) == (c, p)


def _kept_up(window: dict) -> bool:
    """Whether the server had the load that was asked for; while it arrives it cannot have it yet."""
    batch = window.get("mean_batch_size")
    arrives = window.get("arriving") or window.get("temperature") == "cold"
    return arrives or batch is None or batch >= KEPT_UP * window["C"]


def _arm(window: dict) -> str:
    if window.get("arriving"):
        return window["label"] + ARRIVING
    temperature = window.get("temperature") if window["label"] == "governed" else None
    return f"governed {temperature}" if temperature else window["label"]


def _depth_shares(windows: Iterable[dict]) -> dict[str, float]:
    """The share of decode steps at each depth that had one in a hundred of them or more."""
    steps: collections.Counter[str] = collections.Counter()
    for w in windows:
        steps.update(w.get("depth_steps") or {})
    total = sum(steps.values())
    return {k: rounded(n / total, 3) for k, n in sorted(steps.items()) if n >= 0.01 * total}


def traces(windows: list[dict], logs: dict[str, StepLog], requests: dict[str, list[dict]]) -> list[dict]:
    """Per arm of a trace: all output tokens of its phases, tokens per second, latency of the streams."""
    out = []
    for arm in dict.fromkeys(w["trace"] for w in windows if w.get("trace")):
        mine = [w for w in windows if w.get("trace") == arm]
        server, from_s, to_s = mine[0]["server"], mine[0]["from_s"], mine[-1]["to_s"]
        tokens = sum(r[2] for r in logs[server].results if from_s <= r[0] < to_s)
        seconds = round(to_s - from_s, 2)
        rate = round(tokens / seconds, 1)
        figures = clients(requests[server], from_s, to_s)
        mine_s = {"phases": len(mine), "seconds": seconds}
        out.append(
            {"arm": arm, **mine_s, "tokens": tokens, "tok_s": rate, "steady_tok_s": steady(mine), **figures}
        )
    whole = max((t["phases"] for t in out), default=0)
    best = max((t["tok_s"] for t in out if t["arm"] != "governed" and t["phases"] == whole), default=None)
    return [t | {"to_best_other": rounded(t["tok_s"] / best, 4) if best else None} for t in out]
