"""One request: send it, follow its stream, record what came when.

Two dialects: SGLang's own `/generate` and the OpenAI-compatible `/v1/completions`.  Streams are read with
as little work as possible (one search per event, no JSON), since at a few hundred streams the client is
what a benchmark measures otherwise; `load.LoopLag` tells when it happens all the same.
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

from controller.bench.prompts import Prompt
from controller.bench.records import RequestRecord

_TOKENS = re.compile(rb'"completion_tokens"\s*:\s*(\d+)')
_ACCEPTANCE = re.compile(rb'"spec_accept_length"\s*:\s*([0-9.]+)')
_NO_TOKEN = re.compile(rb'"choices"\s*:\s*\[\s*\]|"text"\s*:\s*""')
"""Usage alone, or a role or an end without text; where usage comes with each event, it counts."""
_DONE = b"[DONE]"


class Dialect(StrEnum):
    """Which of the two APIs a server is asked through."""

    SGLANG = "sglang"
    OPENAI = "openai"


class BadAnswerError(Exception):
    """The server answered, but not with a completion."""


@dataclass(frozen=True, slots=True)
class Client:
    """Sends prompts to one server over an `httpx.AsyncClient` that the caller owns.

    `clock` gives the seconds that records are stamped with.  `model` is what OpenAI servers are asked for.
    """

    http: httpx.AsyncClient
    clock: Callable[[], float]
    dialect: Dialect = Dialect.SGLANG
    model: str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    new_rid: Callable[[], str] = lambda: f"specgov-bench-{uuid4().hex}"
    """Makes the id of a request at an SGLang server, by which it is aborted."""

    async def send(self, prompt: Prompt, record: RequestRecord) -> None:
        """Run one request to its end into `record`; a failure is recorded, not raised."""
        record.asked_tokens = prompt.output_tokens
        record.rid = self.new_rid() if self.dialect is Dialect.SGLANG else None
        try:
            await (self._stream(prompt, record) if record.streamed else self._whole(prompt, record))
        except (httpx.HTTPError, BadAnswerError, ValueError) as problem:
            record.error = f"{type(problem).__name__}: {problem}"[:300]
        except asyncio.CancelledError:
            record.cancelled = True
            raise
        else:
            if not record.events:
                record.error = "the answer tells no output tokens (completion_tokens)"
        finally:
            record.ended_s = self.clock()

    async def _whole(self, prompt: Prompt, record: RequestRecord) -> None:
        answer = await self.http.post(self._path, json=self._body(prompt, record))
        if answer.status_code != httpx.codes.OK:
            raise BadAnswerError(f"HTTP {answer.status_code}: {answer.text[:200]}")
        tokens = _TOKENS.search(answer.content)
        if tokens is not None:
            record.events.append((self.clock(), int(tokens[1])))
        record.acceptance_length = _acceptance(answer.content)

    async def _stream(self, prompt: Prompt, record: RequestRecord) -> None:
        async with self.http.stream("POST", self._path, json=self._body(prompt, record)) as answer:
            if answer.status_code != httpx.codes.OK:
                raise BadAnswerError(f"HTTP {answer.status_code}: {(await answer.aread())[:200]!r}")
            last = event = b""
            async for event in _events(answer.aiter_raw()):
                if event == _DONE:
                    break
                if b'"error"' in event[:200]:
                    raise BadAnswerError(event[:200].decode(errors="replace"))
                self._count(event, record)
                last = event
            if event != _DONE:
                raise BadAnswerError("the stream ended without [DONE]")
            record.acceptance_length = _acceptance(last)
        _settle(record, _usage(last) if self.dialect is Dialect.OPENAI else record.output_tokens)

    def _count(self, event: bytes, record: RequestRecord) -> None:
        """Note the tokens so far; where usage comes only at the end, one event counts as one until then."""
        found = _TOKENS.search(event)
        if _NO_TOKEN.search(event) and (found is None or b'"text"' not in event):
            return
        before = record.output_tokens
        record.guessed = found is None
        tokens = int(found[1]) if found is not None else before + 1
        if tokens > before:
            record.events.append((self.clock(), tokens))

    @property
    def _path(self) -> str:
        return "/generate" if self.dialect is Dialect.SGLANG else "/v1/completions"

    def _body(self, prompt: Prompt, record: RequestRecord) -> dict[str, Any]:
        stream = record.streamed
        if self.dialect is Dialect.SGLANG:
            asked = {"input_ids": list(prompt.token_ids)} if prompt.token_ids else {"text": prompt.text}
            sampling = {"temperature": 0.0, "max_new_tokens": prompt.output_tokens, "ignore_eos": True}
            params = {**sampling, **self.sampling}
            return {**asked, "rid": record.rid, "sampling_params": params, "stream": stream}
        body: dict[str, Any] = {
            "model": self.model or "default",
            "prompt": list(prompt.token_ids) if prompt.token_ids else prompt.text,
            "max_tokens": prompt.output_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": stream,
            **self.sampling,
        }
        if stream:
            body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
        return body


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
