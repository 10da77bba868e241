"""Other algorithms that SGLang serves by the worker of EAGLE3, governed on the real SGLang."""

import asyncio

from tests.engine.load import Load, check
from tests.engine.preflight import preflight
from tests.engine.test_governing import (
    cells_of,
    in_modes,
    launches,
    put,
    settled,
    since,
    state_of,
    switches_of,
)

SAME_WORKER = ("eagle", "nextn")


@in_modes(*SAME_WORKER)
async def test_each_depth_is_used_as_asked_and_its_drafts_are_accepted(server, client):
    """Preflight passes, launches are as asked, and drafts are accepted at every position."""
    assert await preflight(server, passes=True) == {}
    state = await state_of(client)
    assert (state["controllable"], state["built_depths"]) == (True, [0, 1, 2, 3])
    for depth in (0, 1, 2, 3):
        assert (await put(client, (1, depth))).status_code == 200
        before = launches(server)
        await asyncio.gather(*[check(client, 20 + 50 * n, 24) for n in range(4)])
        assert {d for _, d in since(server, before)[0, 0]} == {depth}
    await settled(client)
    cells = cells_of(await state_of(client))
    accepted = [sum(cell["accepted"][n] for key, cell in cells.items() if key[1] == 3) for n in range(4)]
    assert all(accepted), f"steps at depth 3 by the drafts accepted, none to all: {accepted}"


@in_modes(*SAME_WORKER)
async def test_no_token_changes_while_depth_and_gear_switch_at_every_step(server, client):
    """Between every depth and every gear of off, under load; nothing of ours fails."""
    before = launches(server)
    turns = [((1, 3), 0, "cold"), ((1, 0, "frozen"), 2, None), ((1, 0, "warm"), 1, None), ((1, 2), 0, "warm")]
    async with Load(client, concurrency=4) as load:
        for row, depth, gear in turns:
            probe = {"depth": depth, "every_steps": 2, "burst_steps": 1} | ({"gear": gear} if gear else {})
            assert (await put(client, row, probe=probe)).status_code in {200, 202}
            await asyncio.sleep(1.5)
            load.raise_if_wrong()
    await settled(client)
    assert load.done > 4
    assert switches_of(since(server, before)[0, 0]) > 40
    state = await state_of(client)
    assert state["plain_decode"] == {"in_force": True, "backend": "IntelAMXAttnBackend", "reason": None}
    assert [telemetry["hook_errors"] for telemetry in state["telemetry"]] == [0]
