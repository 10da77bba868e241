"""What a person sees: one table per concurrency list, the advice in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from controller.bench.advice import TIE, Advice, Worth
from controller.bench.between import Between
from controller.bench.campaign import Window
from controller.bench.client import CONTINUOUS_USAGE, IGNORE_EOS, STREAM_OPTIONS
from controller.bench.failed import add_up, in_words
from controller.bench.load import PAUSE_AFTER_ERROR_S
from controller.bench.outcome import Outcome, guess_remedy
from controller.bench.records import SILENT_S
from controller.bench.statistics import Estimate, estimate

MAX_NAMED = 5
"""Windows that a warning names; of more, how many."""
MIN_ITL_S = 1e-4
"""No server is quicker; events that a late client read at once have no gap between them."""
MIN_PAUSED_SHARE = 0.01
_WITHOUT = {
    CONTINUOUS_USAGE: "tokens of a stream are told at its end, those of running ones estimated by the others",
    IGNORE_EOS: "answers may be shorter than asked for",
    STREAM_OPTIONS: "tokens of a stream may never be told, and are then a guess",
}
GUESS = "?"
"""Behind a figure that rests on tokens that were guessed."""


def throughput_table(outcome: Outcome) -> Group:
    """Output tokens per second by concurrency and arm, one that is told from all others as best in bold.

    95 % intervals of several windows.
    """
    curves = {label: curve for label, curve in outcome.throughput().items() if curve}
    advice = outcome.advice()
    spread = any(value.half_width is not None for curve in curves.values() for value in curve.values())
    title = "Output tokens / s" + (" (95 % interval over alternated windows)" if spread else "")
    table = Table()
    table.add_column("C", justify="right")
    for label in curves:
        table.add_column(label, justify="right")
    guessed = outcome.guessed()
    for concurrency in sorted({c for curve in curves.values() for c in curve}):
        best = advice.best.get(concurrency, ()) if advice else ()
        row = [
            _cell(curve.get(concurrency), bold=best == (label,), guess=(label, concurrency) in guessed)
            for label, curve in curves.items()
        ]
        table.add_row(str(concurrency), *row)
    return _titled(title, table)


def latency_table(outcome: Outcome) -> Group:
    """TTFT, TPOT, ITL and end-to-end times, and errors, per arm and concurrency or phase."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    phases = any(window.phase is not None for window in outcome.measured())
    for name in ("arm", "phase" if phases else "C", "TTFT", "TPOT", "ITL", "end to end", "done", "failed"):
        first = name == "arm"
        table.add_column(name, justify="left" if first else "right", overflow="fold", no_wrap=first)
    groups: dict[tuple[str, str], list[int]] = {}
    windows = outcome.measured()
    for i, window in enumerate(windows):
        where = window.phase or ("-" if window.concurrency is None else str(window.concurrency))
        groups.setdefault((window.label, where), []).append(i)
    for (label, where), members in groups.items():
        stats = [windows[i].stats for i in members]
        guess = GUESS if any(s.guessed for s in stats) else ""
        pairs = (
            [(s.ttft_p50_s, s.ttft_p99_s) for s in stats],
            [(s.tpot_p50_s, s.tpot_p99_s) for s in stats],
            [(s.itl_p50_s, s.itl_p99_s) for s in stats if (s.itl_p50_s or 0.0) >= MIN_ITL_S],
            [(s.e2e_p50_s, s.e2e_p99_s) for s in stats],
        )
        ttft, tpot, itl, e2e = (_pair(each) for each in pairs)
        counts = (str(sum(s.finished for s in stats)), str(sum(s.errors for s in stats)))
        table.add_row(label, where, ttft, tpot if tpot == "-" else tpot + guess, itl, e2e, *counts)
    return _titled("Latency in ms, p50/p99, means over windows; requests", table)


def phase_table(outcome: Outcome) -> Group:
    """Output tokens of a scenario or trace by arm, all phases together; of a trace what was offered too."""
    table = Table()
    trace = any(w.offered is not None for w in outcome.measured())
    for name in ("arm", "tokens", *(["offered / s"] if trace else []), "tokens / s", "worst TPOT p99, ms"):
        table.add_column(name, justify="left" if name == "arm" else "right")
    for label in outcome.labels():
        mine = [w for w in outcome.measured() if w.label == label and w.phase is not None]
        if mine:
            guess = GUESS if any(w.stats.guessed for w in mine) else ""
            tokens = sum(w.stats.output_tok_s * w.stats.window_s for w in mine)
            worst = max((w.stats.tpot_p99_s for w in mine if w.stats.tpot_p99_s is not None), default=None)
            seconds = sum(w.stats.window_s for w in mine)
            asked = [_offered_tok_s(mine)] if trace else []
            rate = f"{tokens / seconds:.1f}{guess}"
            table.add_row(label, f"{tokens:.0f}{guess}", *asked, rate, _ms(worst) + (guess if worst else ""))
    return _titled("Output tokens, all phases", table)


def _offered_tok_s(windows: list[Window]) -> str:
    """What a trace asks for per second; every round the same."""
    rates = [w.offered.tok_s for w in windows if w.offered is not None and w.offered.tok_s is not None]
    return f"{rates[0]:.1f}" if rates else "-"


def _titled(title: str, table: Table) -> Group:
    """A title of its own: that of a table wraps at the table's width."""
    return Group(Text(title, style="italic"), table)


def sentences(outcome: Outcome) -> Iterator[str]:
    """The conclusion for a person; none without advice."""
    advice = outcome.advice()
    if advice is None:
        return
    used, contaminated = outcome.contaminated()
    if contaminated:
        yield (
            f"This advice rests on contaminated windows: other traffic was a part of {contaminated} "
            f"of the {used} that it uses."
        )
    yield from _instead(advice)
    yield from _best(advice)
    yield from _crossing(advice, outcome)
    if advice.schedule:
        rows = ", ".join(f"{start}+: {arm}" for start, arm in advice.schedule)
        first = advice.schedule[0][0]
        unknown = f" Below {first} nothing is known: measure lower concurrencies." if first > 1 else ""
        yield f"Schedule by batch size: {rows}.{unknown}"
    if advice.not_in_schedule:
        which = ", ".join(f"{label} ({why})" for label, why in advice.not_in_schedule.items())
        none = "No schedule, which takes arms that hold a depth"
        yield f"{'Not in the schedule' if advice.schedule else none}: {which}."
    yield from _worth(advice)


def _instead(advice: Advice) -> Iterator[str]:
    """What was measured to be faster than the schedule would be."""
    if (label := advice.instead) is not None:
        gain = advice.worth[label].inverse()
        yield f"Do not run the schedule below: run {label}, which is worth {_gain(gain)} against it."


def _worth(advice: Advice) -> Iterator[str]:
    """What the schedule is worth against each arm, except one that it is alone; the most first."""
    whole = advice.schedule[0][1] if len(advice.schedule) == 1 else None
    for label, gain in sorted(advice.worth.items(), key=lambda item: -item[1].ratio):
        if label != whole:
            told = "it is worth" if gain.is_told else "no worth is told apart from 0:"
            yield f"Against {label} alone {told} {_gain(gain)}."


def _gain(worth: Worth) -> str:
    over = "geometric mean over concurrencies"
    if worth.low is not None and worth.high is not None:
        over = f"{_percent(worth.low)} to {_percent(worth.high)} % at 95 %, {over}"
    return f"{_percent(worth.ratio)} % ({over})"


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f}"


def _best(advice: Advice) -> Iterator[str]:
    """The fastest of all arms, concurrencies with the same one together; where none is, which may be it."""
    clear = {c: labels[0] for c, labels in advice.best.items() if len(labels) == 1}
    at: dict[str, list[int]] = {}
    for concurrency, label in clear.items():
        at.setdefault(label, []).append(concurrency)
    if at:
        each = [f"{label} at {_and([str(c) for c in levels])}" for label, levels in at.items()]
        yield f"Fastest: {'; '.join(each)} requests at once."
    for concurrency, labels in advice.best.items():
        if concurrency not in clear:
            yield (
                f"No fastest at {concurrency} requests at once: {_and(list(labels))} are within "
                f"{100 * TIE:g} %, or no further apart than chance has it at 95 % (more --rounds tell more)."
            )


def _crossing(advice: Advice, outcome: Outcome) -> Iterator[str]:
    for crossing in advice.crossovers:
        yield f"Speculation stops paying at about {crossing.concurrency:.0f} requests at once."
    for turn in advice.undecided:
        inside = _and([str(c) for c in advice.compared if turn.low < c < turn.high])
        yield (
            f"Speculation stops paying between {turn.low} and {turn.high} requests at once: at {inside} it "
            "is not told apart from none (more --rounds tell more)."
        )
    if advice.crossovers or advice.undecided:
        return
    if not advice.compared:
        yield f"Where speculation stops paying was not measured: {_uncompared(outcome)}."
    elif len(advice.compared) == 1:
        yield f"One concurrency ({advice.compared[0]}) shows no crossover of speculation with none."
    else:
        low, high = advice.compared[0], advice.compared[-1]
        yield f"Between {low} and {high} requests at once no crossover of speculation with none is clear."


def _uncompared(outcome: Outcome) -> str:
    """What was wanting for a comparison of speculation with none."""
    depths = set(outcome.held_depths().values())
    wanting = []
    if not any(depths):
        wanting.append("an arm known to draft (depth-N)")
    if 0 not in depths:
        wanting.append("one known not to (off-cold, off-warm, or a server of --plain)")
    return f"it takes {' and '.join(wanting) or 'both at one concurrency that is not left out'}"


def _and(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def left_out(outcome: Outcome) -> Iterator[str]:
    """Which concurrencies the advice does not rest on, and why; or why there is none."""
    thin = outcome.thin()
    if thin:
        none = "No advice" if outcome.advice() is None else "The advice leaves out some concurrencies"
        first: dict[int, str] = {}
        for (label, concurrency), reason in thin.items():
            first.setdefault(concurrency, f"C={concurrency} ({label}: {reason})")
        yield f"{none}, for want of data: {', '.join(first[c] for c in sorted(first))}."
    elif outcome.advice() is None and (alone := [k for k, curve in outcome.throughput().items() if curve]):
        yield (
            f"No advice: {_and(alone)} was all that brought tokens, with nothing to compare it with "
            "(--arms, --plain or --beside add that)."
        )


def contamination(outcome: Outcome) -> Iterator[str]:
    """What makes the advice doubtful, to be said before it."""
    crowded = outcome.crowded()
    if crowded:
        window, running = max(crowded, key=lambda found: found[1] - (found[0].concurrency or 0))
        yield (
            f"The server ran more requests than the benchmark's own clients in {len(crowded)} of "
            f"{len(outcome.windows)} windows (about {running:g} with {window.concurrency} clients): "
            "other traffic is in these figures."
        )


def warnings(outcome: Outcome) -> Iterator[str]:
    """What makes figures doubtful, other traffic aside."""
    yield from away(outcome)
    yield from _refused(outcome)
    yield from _late(outcome)
    yield from _slow(outcome)
    yield from _silent(outcome)
    yield from _behind(outcome)
    yield from failed(outcome)
    yield from _between(outcome)
    yield from _unequal(outcome)
    yield from _uneven(outcome)
    yield from failures(outcome)


def away(outcome: Outcome) -> Iterator[str]:
    """In which windows the server was away."""
    gone = [f"{_where(w)}, round {w.round + 1} ({w.away})" for w in outcome.away()]
    if gone:
        many = "1 window" if len(gone) == 1 else f"{len(gone)} windows"
        yield f"The server was away in {many}, left out of every figure: {_some(gone)}."


def _refused(outcome: Outcome) -> Iterator[str]:
    """What servers would not be asked for, and what is not known for that."""
    for server, fields in outcome.about.get("refused", {}).items():
        guessed = any(w.stats.guessed for w in outcome.measured() if w.server == server)
        told = {} if guessed else {STREAM_OPTIONS: "the tokens of every window were told all the same"}
        costs = "; ".join({**_WITHOUT, **told}[name] for name in fields)
        yield f"{server} refuses {_and(fields)} (HTTP 400 or 422) and was asked without: {costs}."


def _silent(outcome: Outcome) -> Iterator[str]:
    """Streams and whole windows in which nothing came, though the server was there."""
    windows = outcome.measured()
    stalled = {_where(w): None for w in windows if w.stats.stalled}
    if stalled:
        count = sum(w.stats.stalled for w in windows)
        yield (
            f"{count} streams stalled ({_some(list(stalled))}): begun, they had brought nothing for "
            f"{SILENT_S:g} s or more when their window ended, and are in its figures as they are."
        )
    waiting = {_where(w): None for w in windows if w.stats.waiting}
    if waiting:
        count = sum(w.stats.waiting for w in windows)
        yield f"{count} requests waited a whole window for their first token ({_some(list(waiting))})."
    stood = {_where(w): None for w in windows if w.stats.output_tok_s == 0 and not w.stats.errors}
    if stood:
        count = sum(w.stats.output_tok_s == 0 and not w.stats.errors for w in windows)
        many = "1 window, which counts" if count == 1 else f"{count} windows, which count"
        yield f"No token came in {many} with 0 tokens/s ({_some(list(stood))})."


def _behind(outcome: Outcome) -> Iterator[str]:
    """Traces that the server could not follow."""
    for window in outcome.measured():
        asked = window.offered
        if asked is None or not asked.behind:
            continue
        rate = "" if asked.tok_s is None else f"{asked.tok_s:.0f} tokens/s offered, "
        lost = f"; {asked.unanswered} were still not answered then, and dropped" if asked.unanswered else ""
        yield (
            f"{_where(window)}, round {window.round + 1}: the server fell behind: {rate}"
            f"{window.stats.output_tok_s:.0f} delivered; the last request was answered "
            f"{asked.answered_after_s:.1f} s after the last arrival{lost}."
        )


def failures(outcome: Outcome) -> Iterator[str]:
    """Which targets could not be measured where, and why; the first few."""
    for failure in outcome.failures[:MAX_NAMED]:
        why = f"; requests failed: {in_words(failure.errors, 0)}" if failure.errors else ""
        at = "" if failure.concurrency is None else f" at C={failure.concurrency}"
        yield f"{failure.label}{at}: {failure.message}{why}"
    more = len(outcome.failures) - MAX_NAMED
    if more > 0:
        yield f"{more} more of such failures are in results.json"


def failed(outcome: Outcome) -> Iterator[str]:
    """How many requests of each target failed while it was there, and with what."""
    for label in outcome.labels():
        mine = [w for w in outcome.measured() if w.label == label]
        count, errors = sum(w.stats.errors for w in mine), add_up(error for w in mine for error in w.errors)
        if count:
            empty = sum(w.stats.output_tok_s == 0 and w.stats.errors > 0 for w in mine)
            lost = f"; {empty} of its {len(mine)} windows hold no token for that" if empty else ""
            yield f"{label}: {count} requests failed ({in_words(errors, count)}){lost}{_paused(mine)}."


def _between(outcome: Outcome) -> Iterator[str]:
    """What happened outside of windows."""
    for each in outcome.between:
        if each.away is not None:
            anew = "" if each.before is None else f"; window {each.before} is of a server just started"
            yield f"{each.server} was away {_when(each)} ({each.away}), which is in no figure{anew}."
    for server in dict.fromkeys(each.server for each in outcome.between if each.failed):
        mine = [each for each in outcome.between if each.server == server and each.failed]
        count, errors = sum(b.failed for b in mine), add_up(error for b in mine for error in b.errors)
        places = _some([f"{b.failed} {_when(b)}" for b in mine] if len(mine) > 1 else [_when(mine[0])])
        yield f"{server}: {count} requests failed outside of windows, {places} ({in_words(errors, count)})."


def _when(between: Between) -> str:
    """Between which windows, by their numbers in the order in which they were measured."""
    if between.before is None:
        return f"after window {between.after}" if between.after else "before any window"
    if not between.after:
        return f"before window {between.before}"
    return f"between windows {between.after} and {between.before}"


def _paused(windows: list[Window]) -> str:
    """How many clients of a closed loop were not at the server, since each pauses after a failure."""
    worst = 0.0, 0
    for window in windows:
        if window.away is None and window.concurrency:
            clients = window.stats.errors * PAUSE_AFTER_ERROR_S / window.stats.window_s
            worst = max(worst, (min(clients, window.concurrency) / window.concurrency, window.concurrency))
    share, concurrency = worst
    if share < MIN_PAUSED_SHARE:
        return ""
    return (
        f"; a client pauses {PAUSE_AFTER_ERROR_S:g} s after each, so that up to {share * concurrency:.1f} of "
        f"{concurrency} were not at the server"
    )


def _late(outcome: Outcome) -> Iterator[str]:
    late = outcome.late()
    if not late:
        return
    worst: dict[str, float] = {}
    for window in late:
        where = _where(window)
        worst[where] = max(worst.get(where, 0.0), window.client_lag_s or 0.0)
    ranked = sorted(worst.items(), key=lambda item: -item[1])
    named = _some([f"{where} ({1e3 * lag_s:.0f} ms)" for where, lag_s in ranked])
    yield (
        f"The load generator was late in {len(late)} of {len(outcome.windows)} windows, worst first: "
        f"{named}. It measured itself there: use --stream-every, or give it a machine of its own."
    )


def _slow(outcome: Outcome) -> Iterator[str]:
    if not outcome.slow_starts:
        return
    named = _some(
        list(
            dict.fromkeys(
                f"{s.server} for {s.waited_s:g} s at C={s.concurrency} "
                f"({s.answered} of {s.clients} clients had been answered)"
                for s in outcome.slow_starts
            )
        )
    )
    yield f"Measured before the load was under way, since the server did not answer: {named}."


def _unequal(outcome: Outcome) -> Iterator[str]:
    """Where tokens are not those that were asked for, or not known to be those that came."""
    windows = outcome.measured()
    short = {_where(w): None for w in windows if w.stats.short}
    if short:
        count = sum(w.stats.short for w in windows)
        finished = sum(w.stats.finished for w in windows)
        yield (
            f"{count} of {finished} finished answers were shorter than asked for ({_some(list(short))}): "
            "arms did not do the same work. Does the server heed ignore_eos, and is its context long enough?"
        )
    for label in outcome.labels():
        mine = [w for w in windows if w.label == label]
        guessed = {_where(w): None for w in mine if w.stats.guessed}
        if guessed:
            yield (
                "The server did not say how many tokens the events of a stream brought "
                f"({_some(list(guessed))}): each was taken for one, too few under speculation, so the "
                f"figures with {GUESS} are no measure and compare with nothing; {guess_remedy(mine)}."
            )


def _uneven(outcome: Outcome) -> Iterator[str]:
    """Windows without streams that are shorter than an answer."""
    uneven = {
        _where(w): None
        for w in outcome.measured()
        if w.stats.itl_p50_s is None and (w.stats.e2e_p50_s or 0.0) > w.stats.window_s
    }
    if uneven:
        yield (
            f"Windows are shorter than the whole answers in them ({_some(list(uneven))}), which count when "
            "they end: their tokens are uneven. Lengthen --window, or have clients stream (--stream-every)."
        )


def _where(window: Window) -> str:
    if window.phase is not None:
        return f"{window.label} in {window.phase}"
    return f"{window.label} at C={window.concurrency}"


def _some(names: list[str]) -> str:
    more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def _cell(value: Estimate | None, *, bold: bool, guess: bool) -> str:
    if value is None:
        return "-"
    text = f"{value.mean:.0f}" + ("" if value.half_width is None else f" ±{value.half_width:.0f}")
    text += GUESS if guess else ""
    return f"[bold]{text}[/bold]" if bold else text


def _pair(values: list[tuple[float | None, float | None]]) -> str:
    middle = [a for a, _ in values if a is not None]
    tail = [b for _, b in values if b is not None]
    return f"{_ms(estimate(middle).mean)}/{_ms(estimate(tail).mean)}" if middle and tail else "-"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.{0 if seconds >= 1 else 1}f}"
