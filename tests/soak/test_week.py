"""The first minutes of the simulated week, in every test run; `make soak` runs on."""

from __future__ import annotations

import pytest

from tests.soak.week import Week, judge


@pytest.mark.slow
async def test_ten_simulated_minutes_lose_nothing_and_leave_nothing_behind(tmp_path):
    """A day's load, faults, orders, all of the API: no turn fails, no task is left, no order lost."""
    found = await Week(tmp_path, seed=4).run(ticks=600, seconds=100)
    assert judge(found) == []
    assert found.api_requests >= 6
    assert found.plans_pushed > 0
