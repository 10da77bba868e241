"""Kinds of traffic on the real SGLang while the depth changes at every step: nothing of an answer does."""

import asyncio
import json
import re

import pytest

from tests.engine.load import generate, successors
from tests.engine.test_governing import in_modes, put, settled, since, state_of

COUNT = 40


async def in_force(client, *rows, probe=None):
    """Put a plan in force on every rank; a busy machine may take longer than a PUT waits."""
    while (answer := await put(client, *rows, probe=probe, lease_s=600)).status_code == 202:
        await asyncio.sleep(0.5)
    assert answer.status_code == 200, answer.text


@pytest.fixture
async def switching(server, client):
    """A schedule at depth 3 and a probe at depth 0 every other step: each step is a switch."""
    probe = {"depth": 0, "gear": "cold", "every_steps": 2, "burst_steps": 1}
    await in_force(client, (1, 3), probe=probe)
    before = (await state_of(client))["telemetry"][0]["switches"]
    yield
    assert (await state_of(client))["telemetry"][0]["switches"] - before > 10


def body_of(token, count=COUNT, *, more=None, **sampling):
    greedy = {"max_new_tokens": count, "temperature": 0, "ignore_eos": True}
    return {"input_ids": [token], "sampling_params": greedy | sampling} | (more or {})


async def streamed(client, token):
    """The output tokens as each chunk gave them, cumulative."""
    async with client.stream("POST", "/generate", json=body_of(token, more={"stream": True})) as answer:
        lines = [line.removeprefix("data: ") async for line in answer.aiter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line)["output_ids"] for line in lines[:-1]]


@in_modes("overlap")
async def test_a_stream_has_every_token_once_and_in_order_while_depths_change(client, switching):
    """Each chunk goes on where the one before it ended, by one to four tokens, up to the known answer."""
    tokens = (5, 60, 130, 200)
    for token, chunks in zip(
        tokens, await asyncio.gather(*[streamed(client, t) for t in tokens]), strict=True
    ):
        expected = successors(token, COUNT)
        assert len(chunks) > COUNT / 4
        assert all(chunk == expected[: len(chunk)] for chunk in chunks)
        assert chunks[-1] == expected


@in_modes("overlap")
async def test_requests_aborted_while_depths_change_leave_nothing_behind(client, switching):
    """Their tokens are right as far as they came, and their memory comes back."""

    async def aborted(n):
        rid = f"gone-{n}"
        asked = asyncio.create_task(client.post("/generate", json=body_of(7 + n, 900, more={"rid": rid})))
        await asyncio.sleep(0.3 + 0.2 * n)
        await client.post("/abort_request", json={"rid": rid})
        return 7 + n, (await asked).json()

    for token, answer in await asyncio.gather(*[aborted(n) for n in range(4)]):
        assert answer["meta_info"]["finish_reason"]["type"] == "abort"
        assert answer["output_ids"] == successors(token, len(answer["output_ids"]))
    await settled(client)
    (load,) = (await client.get("/v1/loads")).json()["loads"]
    assert load["num_running_reqs"] == 0
    assert await generate(client, 9, COUNT) == successors(9, COUNT)


async def logprobs(client, token):
    answer = await client.post("/generate", json=body_of(token, more={"return_logprob": True}))
    answer.raise_for_status()
    return [(entry[1], entry[0]) for entry in answer.json()["meta_info"]["output_token_logprobs"]]


@in_modes("overlap")
async def test_logprobs_belong_to_the_tokens_that_are_returned_while_depths_change(client):
    """As many as tokens, of these tokens, with the values that a server at depth 0 gives (to bfloat16)."""
    await in_force(client, (1, 0))
    alone = await logprobs(client, 33)
    await in_force(client, (1, 3), probe={"depth": 1, "every_steps": 2, "burst_steps": 1})
    switched = await logprobs(client, 33)
    assert [token for token, _ in switched] == [token for token, _ in alone] == successors(33, COUNT)
    assert [value for _, value in switched] == pytest.approx([value for _, value in alone], abs=0.05)
    assert max(value for _, value in switched) <= 0


@in_modes("overlap")
async def test_answers_match_their_regex_while_depths_change(client, switching):
    """The grammar's state follows accepted tokens only."""
    pattern = "(ab|ba){4,9}"
    bodies = [body_of(20 + n, ignore_eos=False, regex=pattern) for n in range(4)]
    for answer in await asyncio.gather(*[client.post("/generate", json=body) for body in bodies]):
        assert re.fullmatch(pattern, answer.raise_for_status().json()["text"])


@in_modes("dp2")
async def test_ranks_in_different_load_run_different_depths_of_one_schedule(server, client):
    """One request on rank 0, six on rank 1: the same table gives 3 here and, from three on, 0 there."""
    await in_force(client, (1, 3), (3, 0))
    before = since(server, {})
    ranks = [0, *[1] * 6]
    bodies = [body_of(30 + n, 16, more={"routed_dp_rank": rank}) for n, rank in enumerate(ranks)]
    answers = await asyncio.gather(*[client.post("/generate", json=body) for body in bodies])
    assert [a.json()["output_ids"] for a in answers] == [successors(30 + n, 16) for n in range(7)]
    after = since(server, before)
    assert {depth for _, depth in after[0, 0]} == {3}
    assert {depth for size, depth in after[1, 0] if size >= 3} == {0}
    assert any(size >= 3 for size, _ in after[1, 0])
