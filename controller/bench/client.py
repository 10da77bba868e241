"""One request: send it, follow its stream, record what came when.

Three dialects: SGLang's own `/generate`, and `/v1/completions` and `/v1/chat/completions` of servers that are
compatible with OpenAI's.  Streams are read with as little work as possible (one search per event, no JSON),
since at a few hundred streams the client is what a benchmark measures otherwise; `load.LoopLag` tells when it
happens all the same.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from uuid import uuid4

import httpx

from controller.bench.away import lost, own_limit
from controller.bench.prompts import Prompt
from controller.bench.records import RequestRecord

_TOKENS = re.compile(rb'"completion_tokens"\s*:\s*(\d+)')
_ACCEPTANCE = re.compile(rb'"spec_accept_length"\s*:\s*([0-9.]+)')
_NO_CHOICE = re.compile(rb'"choices"\s*:\s*\[\s*\]')
"""Usage alone."""
_NO_TEXT = re.compile(rb'"text"\s*:\s*""')
_CHAT_TEXT = re.compile(rb'"(?:reasoning_)?content"\s*:\s*"[^"]')
"""A role or an end comes without text; where usage comes with each event, it counts."""
_DONE = b"[DONE]"
_SHOWN = 200
"""Bytes of an answer that is no completion, as an error shows them."""


class Dialect(StrEnum):
    """Which API a server is asked through."""

    SGLANG = "sglang"
    OPENAI = "openai"
    CHAT = "openai-chat"


PATHS = {
    Dialect.SGLANG: "/generate",
    Dialect.OPENAI: "/v1/completions",
    Dialect.CHAT: "/v1/chat/completions",
}


CONTINUOUS_USAGE = "continuous_usage_stats"
IGNORE_EOS = "ignore_eos"
STREAM_OPTIONS = "stream_options"
"""Extras of a request that an OpenAI server may refuse; see `extras`."""


class BadAnswerError(Exception):
    """The server answered, but not with a completion."""


@dataclass(frozen=True, slots=True)
class Client:
    """Sends prompts to one server over an `httpx.AsyncClient` that the caller owns.

    `clock` gives the seconds that records are stamped with.  `model` is what OpenAI servers are asked for.
    Chat takes no token ids: its prompts must have a text.
    """

    http: httpx.AsyncClient
    clock: Callable[[], float]
    dialect: Dialect = Dialect.SGLANG
    model: str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    without: frozenset[str] = frozenset()
    """Extras that an OpenAI server is not asked for."""
    new_rid: Callable[[], str] = lambda: f"specgov-bench-{uuid4().hex}"
    """Makes the id of a request at an SGLang server, by which it is aborted."""

    async def send(self, prompt: Prompt, record: RequestRecord) -> None:
        """Run one request to its end into `record`; a failure is recorded, not raised."""
        record.asked_tokens = prompt.output_tokens
        record.rid = self.new_rid() if self.dialect is Dialect.SGLANG else None
        try:
            await (self._stream(prompt, record) if record.streamed else self._whole(prompt, record))
        except (httpx.HTTPError, BadAnswerError, ValueError) as problem:
            if not record.aborted:
                record.error = _in_words(problem)
                record.lost = lost(problem)
        except asyncio.CancelledError:
            record.cancelled = True
            raise
        else:
            if not record.events and not record.aborted:
                many = "no" if record.told_tokens is None else str(record.told_tokens)
                record.error = f"the answer tells {many} output tokens (completion_tokens)"
        finally:
            record.ended_s = self.clock()
            record.aborted &= record.output_tokens < prompt.output_tokens

    async def status(self, prompt: Prompt, *, streamed: bool) -> int:
        """The HTTP status of one request, which runs to its end; raises `httpx.HTTPError`."""
        body = self._body(prompt, RequestRecord(self.clock(), streamed))
        return (await self.http.post(self.path, json=body)).status_code

    async def abort(self, rid: str) -> None:
        """Ask an SGLang server to end this request; raises `httpx.HTTPError`."""
        await self.http.post("/abort_request", json={"rid": rid})

    async def _whole(self, prompt: Prompt, record: RequestRecord) -> None:
        answer = await self.http.post(self.path, json=self._body(prompt, record))
        if answer.status_code != httpx.codes.OK:
            raise BadAnswerError(f"HTTP {answer.status_code}: {answer.text[:_SHOWN]}")
        tokens = _TOKENS.search(answer.content)
        if tokens is None and b'"error"' in answer.content[:_SHOWN]:
            raise BadAnswerError(f"HTTP 200 with an error: {answer.text[:_SHOWN]}")
        record.told_tokens = None if tokens is None else int(tokens[1])
        if record.told_tokens:
            record.events.append((self.clock(), record.told_tokens))
        record.acceptance_length = _acceptance(answer.content)

    async def _stream(self, prompt: Prompt, record: RequestRecord) -> None:
        async with self.http.stream("POST", self.path, json=self._body(prompt, record)) as answer:
            if answer.status_code != httpx.codes.OK:
                raise BadAnswerError(f"HTTP {answer.status_code}: {(await answer.aread())[:_SHOWN]!r}")
            last = event = b""
            head = bytearray()
            async for event in _events(_noting(answer.aiter_raw(), head)):
                if event == _DONE:
                    break
                if b'"error"' in event[:_SHOWN]:
                    raise BadAnswerError(event[:_SHOWN].decode(errors="replace"))
                self._count(event, record)
                last = event
            if event != _DONE:
                raise BadAnswerError("the stream ended without [DONE]" if event else _no_stream(bytes(head)))
            record.acceptance_length = _acceptance(last)
        _settle(record, record.output_tokens if self.dialect is Dialect.SGLANG else _usage(last))

    def _count(self, event: bytes, record: RequestRecord) -> None:
        """Note the tokens so far; where usage comes only at the end, one event counts as one until then."""
        found = _TOKENS.search(event)
        if found is not None:
            record.told_tokens = int(found[1])
        if _NO_CHOICE.search(event) or (found is None and not self._has_text(event)):
            return
        before = record.output_tokens
        record.guessed = found is None
        tokens = int(found[1]) if found is not None else before + 1
        if tokens > before:
            record.events.append((self.clock(), tokens))

    def _has_text(self, event: bytes) -> bool:
        if self.dialect is Dialect.CHAT:
            return _CHAT_TEXT.search(event) is not None
        return _NO_TEXT.search(event) is None

    @property
    def path(self) -> str:
        """Where requests go, under the server's URL."""
        return PATHS[self.dialect]

    def _body(self, prompt: Prompt, record: RequestRecord) -> dict[str, Any]:
        stream = record.streamed
        if self.dialect is Dialect.SGLANG:
            asked = {"input_ids": list(prompt.token_ids)} if prompt.token_ids else {"text": prompt.text}
            sampling = {"temperature": 0.0, "max_new_tokens": prompt.output_tokens, "ignore_eos": True}
            params = {**sampling, **self.sampling}
            return {**asked, "rid": record.rid, "sampling_params": params, "stream": stream}
        body: dict[str, Any] = {
            "model": self.model or "default",
            **self._question(prompt),
            "max_tokens": prompt.output_tokens,
            "temperature": 0.0,
            IGNORE_EOS: True,
            "stream": stream,
            **self.sampling,
        }
        if stream:
            options = {"include_usage": True, CONTINUOUS_USAGE: True}
            body[STREAM_OPTIONS] = {key: yes for key, yes in options.items() if key not in self.without}
        return {key: value for key, value in body.items() if key not in self.without}

    def _question(self, prompt: Prompt) -> dict[str, Any]:
        if self.dialect is Dialect.CHAT:
            return {"messages": [{"role": "user", "content": prompt.text}]}
        return {"prompt": list(prompt.token_ids) if prompt.token_ids else prompt.text}


def _in_words(problem: Exception) -> str:
    """Kind and text of a failure."""
    text = f"{type(problem).__name__}: {problem}"
    if own_limit(problem):
        text += " (this machine is out of files or ports for connections: see ulimit -n)"
    return text[:300]


def _no_stream(head: bytes) -> str:
    """What came in place of a stream, by its first bytes."""
    text = head[:_SHOWN].decode(errors="replace")
    if not text.strip():
        return "the stream ended without [DONE]"
    if b'"error"' in head:
        return f"HTTP 200 with an error: {text}"
    return f"the server does not stream, it sent a whole answer (--stream-every 0 takes those): {text}"


async def _noting(chunks: AsyncIterator[bytes], head: bytearray) -> AsyncIterator[bytes]:
    """The same chunks; the first bytes of the first are kept in `head`."""
    async for chunk in chunks:
        if not head:
            head += chunk[:_SHOWN]
        yield chunk


async def _events(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The payloads of server-sent events (`data: ...` and a blank line)."""
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).replace(b"\r\n", b"\n").split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()
    if rest.startswith(b"data:"):
        yield rest[5:].strip()


def _acceptance(text: bytes) -> float | None:
    found = _ACCEPTANCE.search(text)
    return float(found[1]) if found else None


def _usage(last: bytes) -> int | None:
    """Output tokens by the usage of the last event."""
    try:
        return int(json.loads(last)["usage"]["completion_tokens"])
    except (ValueError, TypeError, LookupError):
        return None


def _settle(record: RequestRecord, true: int | None) -> None:
    """When tokens were counted by events and the end says otherwise, spread the true count over them.

    The first event has the prefill's one token; the others are taken to be alike.
    """
    counted = len(record.events)
    if true is None or counted < 2 or true < counted:
        return
    if [tokens for _, tokens in record.events[:-1]] == list(range(1, counted)):
        each = (true - 1) / (counted - 1)
        record.events = [(at_s, 1 + round(i * each)) for i, (at_s, _) in enumerate(record.events)]
        record.guessed, record.settled = False, True
