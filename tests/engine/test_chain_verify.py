"""Chains verified by decoding on the real SGLang: the same tokens, by another path."""

import asyncio
import json

import httpx
import pytest

from tests.engine import attention_log
from tests.engine.server import Server, write_entry_point
from tests.engine.test_governing import settled, state_of
from tests.engine.test_plain_decode import (
    apply,
    flags_of,
    probe,
    prompts,
    random_models,  # noqa: F401  # a fixture
    tokens_of,
)

pytestmark = pytest.mark.timeout(2400)
LENGTH = 14
BEYOND = 4
"""Tokens that are known behind an answer's end, so that the drafts of its last step are right too."""
PLANS = {
    "depth 3": ((1, 3), None),
    "depth 1": ((1, 1), None),
    "depths 3 and 2 by turns": ((1, 3), probe(2)),
    "depths 3 and 0 by turns": ((1, 3), probe(0, "cold")),
}


@pytest.mark.parametrize("mode", ["overlap", "tp2"])
def test_drafts_are_accepted_to_the_last_and_tokens_are_those_of_plain_decoding(
    engine,
    random_models,  # noqa: F811
    tmp_path,
    mode,
):
    """At float32, on a target whose every token depends on its whole context, with drafts that are right.

    A row that saw too much or too little of its chain would refuse the next draft.  Pages of 16, chunked
    prefill, shared prefixes and several requests a batch are among the prompts; depth 0 says what is right.
    """
    oracle, plugins = tmp_path / "oracle.json", tmp_path / "plugins"
    write_entry_point(plugins, "attention_log", "tests.engine.attention_log:register")
    write_entry_point(plugins, "oracle_drafts", "tests.engine.oracle_drafts:register")
    flags = [*flags_of(random_models), "--page-size", "16", "--chunked-prefill-size", "64"]
    environment = {"SPECGOV_CHAIN_VERIFY": "1", "ORACLE_FILE": str(oracle)}
    server = Server(mode, *engine, tmp_path, flags=flags, environment=environment).start()
    try:
        asyncio.run(every_plan_answers_alike(server, oracle))
    finally:
        server.stop()
    calls = attention_log.read(tmp_path)
    assert {mode for mode, *_ in calls} == {"DECODE"}, "neither verify nor extend went to the prefill kernel"
    assert all(queries == rows for _, queries, rows in calls)
    assert {queries for _, queries, _ in calls} >= {1, 2, 4, 6 * 4}, "one request alone, and six together"


async def every_plan_answers_alike(server, oracle):
    async with httpx.AsyncClient(base_url=server.url, timeout=300) as client:
        state = await state_of(client)
        assert state["chain_verify"] == {
            "in_force": True, "backend": "IntelAMXAttnBackend", "reason": None, "draft_extend": True,
        }  # fmt: skip
        assert state["plain_decode"]["in_force"] is True
        await apply(client, (1, 0, "warm"))
        known = [await tokens_of(client, p, LENGTH + BEYOND) for p in prompts()]
        assert len({tuple(a) for a in known}) == len(known)
        oracle.write_text(json.dumps([[*p, *a] for p, a in zip(prompts(), known, strict=True)]))
        right = [answer[:LENGTH] for answer in known]
        refused_at_start = refused_drafts(await state_of(client))  # SGLang's own warm-up drafts, too
        for name, (row, wanted) in PLANS.items():
            await apply(client, row, wanted)
            assert [await tokens_of(client, p, LENGTH) for p in prompts()] == right, name
            assert await asyncio.gather(*[tokens_of(client, p, LENGTH) for p in prompts()]) == right, name
        await settled(client)
        state = await state_of(client)
        assert {t["hook_errors"] for t in state["telemetry"]} == {0}
        assert state["ranks_agree"] is not False
        assert refused_drafts(state) == refused_at_start


def refused_drafts(state):
    """Steps of requests in which not every draft was accepted, so far."""
    return sum(
        sum(cell[name][: cell["depth"]])
        for cell in state["telemetry"][0]["cells"]
        for name in ("accepted", "accepted_after_cold")
    )
