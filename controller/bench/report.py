"""What a person sees: one table per concurrency list, the advice in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from controller.bench.advice import Advice
from controller.bench.outcome import Outcome
from controller.bench.statistics import Estimate, estimate


def throughput_table(outcome: Outcome) -> Table:
    """Output tokens per second by concurrency and arm, the best in bold; 95 % intervals of several."""
    curves = {label: curve for label, curve in outcome.throughput().items() if curve}
    advice = outcome.advice()
    spread = any(value.half_width is not None for curve in curves.values() for value in curve.values())
    table = Table(title="Output tokens / s" + (" (95 % interval over alternated windows)" if spread else ""))
    table.add_column("C", justify="right")
    for label in curves:
        table.add_column(label, justify="right")
    for concurrency in sorted({c for curve in curves.values() for c in curve}):
        best = advice.best.get(concurrency) if advice else None
        row = [_cell(curve.get(concurrency), bold=label == best) for label, curve in curves.items()]
        table.add_row(str(concurrency), *row)
    return table


def latency_table(outcome: Outcome) -> Table:
    """TTFT, TPOT, ITL and end-to-end times, and errors, per arm and concurrency or phase."""
    table = Table(title="Latency, p50 / p99, means over windows")
    for name in ("arm", "C", "TTFT, ms", "TPOT, ms", "ITL, ms", "end to end, ms", "requests", "errors"):
        table.add_column(name, justify="left" if name == "arm" else "right")
    groups: dict[tuple[str, str], list[int]] = {}
    for i, window in enumerate(outcome.windows):
        where = window.phase or ("-" if window.concurrency is None else str(window.concurrency))
        groups.setdefault((window.label, where), []).append(i)
    for (label, where), members in groups.items():
        stats = [outcome.windows[i].stats for i in members]
        pairs = (
            [(s.ttft_p50_s, s.ttft_p99_s) for s in stats],
            [(s.tpot_p50_s, s.tpot_p99_s) for s in stats],
            [(s.itl_p50_s, s.itl_p99_s) for s in stats],
            [(s.e2e_p50_s, s.e2e_p99_s) for s in stats],
        )
        counts = (str(sum(s.finished for s in stats)), str(sum(s.errors for s in stats)))
        table.add_row(label, where, *(_pair(each) for each in pairs), *counts)
    return table


def phase_table(outcome: Outcome) -> Table:
    """Output tokens of a scenario or trace by arm, all phases together."""
    table = Table(title="Output tokens, all phases")
    for name in ("arm", "tokens", "tokens / s", "worst TPOT p99, ms"):
        table.add_column(name, justify="left" if name == "arm" else "right")
    for label in outcome.labels():
        mine = [w for w in outcome.windows if w.label == label and w.phase is not None]
        if mine:
            tokens = sum(w.stats.output_tok_s * w.stats.window_s for w in mine)
            worst = max((w.stats.tpot_p99_s for w in mine if w.stats.tpot_p99_s is not None), default=None)
            seconds = sum(w.stats.window_s for w in mine)
            table.add_row(label, f"{tokens:.0f}", f"{tokens / seconds:.1f}", _ms(worst))
    return table


def sentences(advice: Advice) -> Iterator[str]:
    """The conclusion for a person."""
    if advice.crossovers:
        for crossing in advice.crossovers:
            yield f"Speculation stops paying at about {crossing.concurrency:.0f} requests at once."
    elif advice.best:
        low, high = min(advice.best), max(advice.best)
        best = f"{advice.best[low]} at {low}, {advice.best[high]} at {high}"
        yield f"No crossover between {low} and {high} requests at once; best is {best}."
    if advice.schedule:
        rows = ", ".join(f"{start}+: {arm}" for start, arm in advice.schedule)
        yield f"Schedule by batch size: {rows}."
    for label, gain in sorted(advice.worth.items(), key=lambda item: -item[1]):
        percent = 100 * (gain - 1)
        yield f"Against {label} alone it is worth {percent:+.1f} % (geometric mean over concurrencies)."


def left_out(outcome: Outcome) -> Iterator[str]:
    """Which concurrencies the advice does not rest on, and why."""
    thin = outcome.thin()
    if not thin:
        return
    none = "No advice" if outcome.advice() is None else "The advice leaves out some concurrencies"
    first: dict[int, str] = {}
    for (label, concurrency), reason in thin.items():
        first.setdefault(concurrency, f"C={concurrency} ({label}: {reason})")
    yield f"{none}, for want of data: {', '.join(first[c] for c in sorted(first))}."


def warnings(outcome: Outcome) -> Iterator[str]:
    """What makes figures doubtful."""
    late = outcome.late()
    if late:
        worst = max(w.client_lag_s or 0.0 for w in late)
        where = f"{len(late)} of {len(outcome.windows)} windows"
        yield (
            f"The load generator was up to {1e3 * worst:.0f} ms late in {where}: it measured itself there. "
            "Use --stream-every, or give it a machine of its own."
        )
    crowded = outcome.crowded()
    if crowded:
        window, running = max(crowded, key=lambda found: found[1] - (found[0].concurrency or 0))
        yield (
            f"The server ran more requests than the benchmark's own clients in {len(crowded)} of "
            f"{len(outcome.windows)} windows (about {running:.0f} with {window.concurrency} clients): "
            "other traffic is in these figures."
        )
    failed = sum(w.stats.errors for w in outcome.windows)
    if failed:
        yield f"{failed} requests failed; see the windows in results.json."
    empty = sum(w.stats.output_tok_s == 0 for w in outcome.windows)
    if empty:
        yield f"{empty} windows saw no token and are left out of the means: lengthen --window."
    for failure in outcome.failures:
        yield f"{failure.label} at C={failure.concurrency}: {failure.message}"


def _cell(value: Estimate | None, *, bold: bool) -> str:
    if value is None:
        return "-"
    text = f"{value.mean:.0f}" + ("" if value.half_width is None else f" ±{value.half_width:.0f}")
    return f"[bold]{text}[/bold]" if bold else text


def _pair(values: list[tuple[float | None, float | None]]) -> str:
    middle = [a for a, _ in values if a is not None]
    tail = [b for _, b in values if b is not None]
    return f"{_ms(estimate(middle).mean)} / {_ms(estimate(tail).mean)}" if middle and tail else "-"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.{0 if seconds >= 1 else 1}f}"
