"""The first minutes of the simulated week, in every test run; `make soak` runs on."""

from __future__ import annotations

import pytest

from tests.soak.week import Figures, Week, judge


@pytest.mark.slow
async def test_ten_simulated_minutes_lose_nothing_and_leave_nothing_behind(tmp_path):
    """A day's load, faults, orders, all of the API: no turn fails, no task is left, no order lost."""
    found = await Week(tmp_path, seed=4).run(ticks=600, seconds=100)
    assert judge(found) == []
    assert found.api_requests >= 6
    assert found.plans_pushed > 0


@pytest.mark.parametrize(
    ("last_tenth", "highest", "wrong"),
    [
        (90_999_999, 91_000_000, []),
        (90_000_000, 91_000_001, ["memory was up to 1000001 bytes above the end of the warm-up"]),
        (
            91_000_001,
            91_000_001,
            [
                "memory grew by 1000001 bytes after the warm-up",
                "memory was up to 1000001 bytes above the end of the warm-up",
            ],
        ),
    ],
)
def test_a_week_that_grows_or_peaks_by_more_than_1_mb_is_wrong(last_tenth, highest, wrong):
    """Both the median of the last tenth and the highest sample count, against the end of the warm-up."""
    found = Figures(rss_warm_bytes=90_000_000, rss_last_tenth_bytes=last_tenth, rss_highest_bytes=highest)
    assert judge(found) == wrong
