"""What one request did, and what a window of time saw of many.  Pure: no I/O, no clock.

Times are seconds on whatever clock the load ran on; only differences mean anything.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import linear_regression

from controller.bench.statistics import quantile

_ENOUGH_FOR_A_SLOPE = 8
SILENT_S = 2.0
"""A stream that has brought nothing for so long is told of; prefills of others hold one up for less."""


class Lost(StrEnum):
    """How a request lost its server."""

    REFUSED = "refused"
    """No connection could be made."""
    BROKEN = "broken"
    """The connection ended in the middle."""


@dataclass(slots=True)
class RequestRecord:
    """One request from sending to its end, filled in while it runs.

    `events` are (time, output tokens so far), one per stream event that brought tokens.  A request that
    is not streamed has a single event, at its end.  Where the server says only at the end how many tokens
    there were, each event counts as one until then (`guessed`).
    """

    started_s: float
    streamed: bool
    asked_tokens: int | None = None
    """Output tokens that were asked for."""
    rid: str | None = None
    """The request's id at an SGLang server."""
    events: list[tuple[float, int]] = field(default_factory=list)
    ended_s: float | None = None
    error: str | None = None
    lost: Lost | None = None
    """`None`: it did not lose its server, whether it failed or not."""
    told_tokens: int | None = None
    """Output tokens by the server's latest word; `None`: it has not said."""
    cancelled: bool = False
    aborted: bool = False
    """Whether the server was told to end it before it had all its tokens."""
    acceptance_length: float | None = None
    """Tokens per verify step as the server reports it, bonus included; `None` when it does not."""
    guessed: bool = False
    """Whether `events` count one token each because the server has not said how many they brought."""
    settled: bool = False
    """Whether they were guessed, and the end has said how many tokens there were."""

    @property
    def given_up(self) -> bool:
        """Whether it is we who ended it, so that it is neither answered nor failed."""
        return self.cancelled or self.aborted

    @property
    def output_tokens(self) -> int:
        """Output tokens seen so far."""
        return self.events[-1][1] if self.events else 0

    @property
    def ttft_s(self) -> float | None:
        """Sending to the first token; `None` unless streamed."""
        return self.events[0][0] - self.started_s if self.streamed and self.events else None

    @property
    def e2e_s(self) -> float | None:
        """Sending to the end; `None` while it runs."""
        return None if self.ended_s is None else self.ended_s - self.started_s

    @property
    def tpot_s(self) -> float | None:
        """(last token - first token) / tokens after the first event; `None` unless streamed and finished."""
        if not self.streamed or self.ended_s is None or len(self.events) < 2:
            return None
        (first_s, first_tokens), (last_s, last_tokens) = self.events[0], self.events[-1]
        return (last_s - first_s) / (last_tokens - first_tokens)

    def itl_s(self) -> Iterator[tuple[float, float]]:
        """(time, gap to the event before) of every event after the first.

        Under speculation one event brings several tokens.
        """
        for (before_s, _), (at_s, _) in itertools.pairwise(self.events):
            yield at_s, at_s - before_s

    def silent_s(self, at_s: float) -> float | None:
        """How long it had brought nothing at that moment; `None` unless it streams and ran then."""
        if not self.streamed or self.started_s > at_s or (self.ended_s is not None and self.ended_s <= at_s):
            return None
        return at_s - max((when_s for when_s, _ in self.events if when_s <= at_s), default=self.started_s)

    @property
    def is_short(self) -> bool:
        """Whether it ended well with fewer tokens than were asked for."""
        ended = self.ended_s is not None and self.error is None and not self.given_up
        return ended and not self.guessed and self.output_tokens < (self.asked_tokens or 0)

    def tokens_between(self, from_s: float, to_s: float) -> int:
        """Output tokens that arrived in the span; a whole answer arrives at its end."""
        return self._tokens_at(to_s) - self._tokens_at(from_s)

    def _tokens_at(self, at_s: float) -> int:
        return max((tokens for when_s, tokens in self.events if when_s <= at_s), default=0)


@dataclass(frozen=True, slots=True)
class WindowStats:
    """What the clients saw between two moments; latencies are `None` where no request shows them."""

    window_s: float
    output_tok_s: float
    finished: int
    """Requests that ended inside the window without an error."""
    errors: int
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    tpot_p50_s: float | None
    tpot_p99_s: float | None
    itl_p50_s: float | None
    itl_p99_s: float | None
    e2e_p50_s: float | None
    e2e_p99_s: float | None
    s_per_token_p50: float | None
    """End-to-end time over output tokens, of streamed and other requests alike."""
    s_per_token_p99: float | None
    acceptance_length: float | None
    """Mean of what the server reported per request that ended inside the window, bonus included."""
    short: int = 0
    """Of the finished ones, those with fewer tokens than were asked for: arms did not do the same work."""
    guessed: bool = False
    """Whether each stream event was taken for one token, since the server did not say how many it brought."""
    untold: int = 0
    """Of the finished ones, streams of which the server never said how many tokens they brought."""
    stalled: int = 0
    """Streams that had begun and then brought nothing until the window's end for `SILENT_S` at least."""
    waiting: int = 0
    """Streams that had not begun, and brought nothing for the whole window and `SILENT_S` at least."""


def window_stats(
    records: Iterable[RequestRecord], from_s: float, to_s: float, *, stream_share: float = 1.0
) -> WindowStats:
    """Summarise (`from_s`, `to_s`].

    Requests count towards a latency when they ended inside the window (TTFT: when their first token came,
    so that the clients' own start, before the window, is in no figure; ITL: when the gap did); tokens count
    when they arrived inside it, whoever's they are.  Stream events of which the server has not said how many
    tokens they brought are taken to bring as many as those of the requests that have ended (`per_event`).

    `stream_share` is the share of the clients that stream.  Theirs are the tokens whose time is known, so
    where some stream all output is taken in proportion to theirs; where none does (0), whole answers count
    when they end: true on average, and uneven over a short window.  Raises `ValueError` for an empty window.
    """
    if to_s <= from_s:
        raise ValueError(f"to_s must be after from_s ({from_s}), got {to_s}")
    records = list(records)
    alive = [r for r in records if r.started_s < to_s and (r.ended_s is None or r.ended_s > from_s)]
    ended = [r for r in alive if r.ended_s is not None and r.ended_s <= to_s]
    good = [r for r in ended if r.error is None and not r.given_up]
    begun = [r for r in alive if r.streamed and r.events and from_s < r.events[0][0] <= to_s]
    ttft = [r.ttft_s for r in begun if r.error is None and r.ttft_s is not None]
    tpot = [r.tpot_s for r in good if r.tpot_s is not None]
    itl = [gap for r in alive for at_s, gap in r.itl_s() if from_s < at_s <= to_s]
    e2e = [r.e2e_s for r in good if r.e2e_s is not None]
    s_per_token = [r.e2e_s / r.output_tokens for r in good if r.e2e_s is not None and r.output_tokens]
    guessed = [r for r in alive if r.guessed and r.events]
    each = per_event(records) if guessed else None
    silent = [(r, s) for r in alive if (s := r.silent_s(to_s)) is not None and s >= SILENT_S]
    lengths = [r.acceptance_length for r in good if r.acceptance_length is not None]
    return WindowStats(
        window_s=to_s - from_s,
        output_tok_s=_tokens(alive, from_s, to_s, stream_share, each or 1.0) / (to_s - from_s),
        finished=len(good),
        errors=sum(r.error is not None for r in ended),
        short=sum(r.is_short for r in good),
        guessed=bool(guessed) and each is None,
        untold=sum(r.streamed and r.guessed for r in good),
        stalled=sum(bool(r.events) for r, _ in silent),
        waiting=sum(not r.events and s >= to_s - from_s for r, s in silent),
        ttft_p50_s=quantile(ttft, 0.5),
        ttft_p99_s=quantile(ttft, 0.99),
        tpot_p50_s=quantile(tpot, 0.5),
        tpot_p99_s=quantile(tpot, 0.99),
        itl_p50_s=quantile(itl, 0.5),
        itl_p99_s=quantile(itl, 0.99),
        e2e_p50_s=quantile(e2e, 0.5),
        e2e_p99_s=quantile(e2e, 0.99),
        s_per_token_p50=quantile(s_per_token, 0.5),
        s_per_token_p99=quantile(s_per_token, 0.99),
        acceptance_length=sum(lengths) / len(lengths) if lengths else None,
    )


def _tokens(
    alive: list[RequestRecord], from_s: float, to_s: float, stream_share: float, each: float
) -> float:
    counted = alive if stream_share <= 0 else [r for r in alive if r.streamed]
    tokens = sum(r.tokens_between(from_s, to_s) * (each if r.guessed else 1.0) for r in counted)
    return tokens / (stream_share if stream_share > 0 else 1.0)


def per_event(records: Iterable[RequestRecord]) -> float | None:
    """Tokens that a stream event brings, by the requests that were settled; `None`: there are none.

    The slope of tokens over events (least squares): a first event of one token and a last one that is not
    full are in every request alike, and fall out of it; they weigh much in the short answers that end first.
    With too few requests to tell, all tokens over all events, the first of each left out.
    """
    settled = [(len(r.events) - 1, r.output_tokens - 1) for r in records if r.settled]
    if not settled:
        return None
    if len(settled) >= _ENOUGH_FOR_A_SLOPE and len({events for events, _ in settled}) > 1:
        slope: float = linear_regression(*zip(*settled, strict=True)).slope
        return max(1.0, slope)
    return sum(tokens for _, tokens in settled) / sum(events for events, _ in settled)
