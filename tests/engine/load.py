"""Requests whose every output token is known."""

import asyncio
import itertools

VOCABULARY = 512


def successors(token, count):
    """What the target says after `token`; the rule of `make_models.py`."""
    tokens = []
    for _ in range(count):
        token = (token + (9 if token % 8 == 7 else 1)) % VOCABULARY
        tokens.append(token)
    return tokens


async def generate(client, token, count):
    """One greedy request; its output tokens."""
    body = {
        "input_ids": [token],
        "sampling_params": {"max_new_tokens": count, "temperature": 0, "ignore_eos": True},
    }
    answer = await client.post("/generate", json=body)
    answer.raise_for_status()
    return answer.json()["output_ids"]


async def check(client, token, count):
    """One request; raises `AssertionError` unless every token is as known."""
    assert await generate(client, token, count) == successors(token, count)


class Load:
    """`concurrency` requests at a time, of various lengths, until left; every token of each is checked."""

    def __init__(self, client, concurrency):
        self.done = 0
        self._client = client
        self._concurrency = concurrency
        self._leaving = False
        self._tasks = []

    async def __aenter__(self):
        numbers = itertools.count()
        self._tasks = [asyncio.create_task(self._work(numbers)) for _ in range(self._concurrency)]
        return self

    async def __aexit__(self, *_):
        self._leaving = True
        await asyncio.gather(*self._tasks)

    def raise_if_wrong(self):
        """Raises what ended a request, a wrong token or an error of the server: else only leaving tells."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def _work(self, numbers):
        while not self._leaving:
            n = next(numbers)
            await check(self._client, 3 + 37 * n % 500, 12 + 7 * n % 31)
            self.done += 1
