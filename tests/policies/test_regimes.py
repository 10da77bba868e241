from __future__ import annotations

import numpy as np
import pytest

from policies.acceptance import Survival
from policies.types import Arm, CellDelta


def tick(p: float, depth: int, request_steps: int = 400) -> CellDelta:
    """A second in which exactly the share `p` of every draft that was reached is accepted."""
    left, accepted = float(request_steps), []
    for _ in range(depth):
        accepted.append(round(left * (1 - p)))
        left *= p
    return cell((*accepted, round(left)))


def cell(accepted: tuple[int, ...]) -> CellDelta:
    n = sum(accepted)
    return CellDelta(8, Arm(len(accepted) - 1), n, n, n, accepted, (), 0, 0.0, 0.0, 0, 0)


def watched(*spells: tuple[float, int, int]) -> tuple[Survival, list[bool]]:
    """Spells of (acceptance, depth, seconds), one after the other; and what was announced each second."""
    survival = Survival()
    told = [survival.observe([tick(p, depth)], 1.0) for p, depth, seconds in spells for _ in range(seconds)]
    return survival, told


def test_a_change_is_announced_with_the_second_that_shows_it() -> None:
    """A minute at 0.8, one second at 0.3: announced, once, and believed."""
    survival, told = watched((0.8, 3, 60), (0.3, 3, 1))
    assert told == [False] * 60 + [True]
    assert survival.conditional(3)[0] == pytest.approx([0.3, 0.3, 0.3], abs=0.03)


def test_the_second_in_which_a_change_fell_is_no_change_of_its_own() -> None:
    """Half of it before and half after looks like 0.55 for a second: one change, not two."""
    _, told = watched((0.8, 3, 60), (0.55, 3, 1), (0.3, 3, 60))
    assert sum(told) == 1


def test_what_deep_drafts_did_before_a_change_is_dropped_though_none_was_made_since() -> None:
    """Depth 3 at 0.8, then depth 1 at 0.3: the second draft is believed to do as the first, unsurely."""
    survival, _ = watched((0.8, 3, 60), (0.3, 1, 2))
    p, variance = survival.conditional(2)
    assert p[1] == pytest.approx(p[0], abs=0.01)
    assert variance[1] ** 0.5 > 0.1


def test_a_regime_that_comes_back_is_known_in_all_positions() -> None:
    """0.8 at depth 3, 0.3 for a minute, a second of 0.8 at depth 1: drafts 2 and 3 are at 0.8 again."""
    survival, told = watched((0.8, 3, 60), (0.3, 3, 60), (0.8, 1, 1))
    assert told[-1]
    p, variance = survival.conditional(3)
    assert p == pytest.approx([0.8, 0.8, 0.8], abs=0.02)
    assert variance[2] ** 0.5 < 0.05


@pytest.mark.parametrize("request_steps", [30, 1000])
def test_chance_alone_announces_nothing(request_steps: int) -> None:
    """Ten minutes of coin tosses: the promise is one false alarm in 50 hours."""
    rng, survival = np.random.default_rng(5), Survival()
    for _ in range(600):
        drafts = np.minimum(rng.geometric(0.4, request_steps) - 1, 3)
        counts = tuple(np.bincount(drafts, minlength=4).tolist())
        assert not survival.observe([cell(counts)], 1.0)


def test_single_requests_are_not_taken_for_changes_for_long() -> None:
    """One request at a time, three seconds each, p = 0.6 +- 0.2: of 300 requests at most 5 are announced.

    Caution is learned from the first ones; without it every tenth was announced.
    """
    rng, survival, announced = np.random.default_rng(1), Survival(), 0
    for p in rng.beta(3.0, 2.0, 300):
        for _ in range(3):
            drafts = np.minimum(rng.geometric(1 - p, 150) - 1, 3)
            announced += survival.observe([cell(tuple(np.bincount(drafts, minlength=4).tolist()))], 1.0)
    assert announced <= 5
    assert survival.unrest > 1


def test_regimes_outlive_the_process() -> None:
    """Exported after 0.8 and 0.3; a second of 0.8 at depth 1 brings back what was known of three drafts."""
    survival, _ = watched((0.8, 3, 60), (0.3, 3, 60))
    again = Survival()
    again.import_state(survival.export_state())
    assert again.observe([tick(0.8, 1)], 1.0)
    assert again.conditional(3)[0] == pytest.approx([0.8, 0.8, 0.8], abs=0.02)


def test_a_state_with_a_bad_regime_is_refused_by_field() -> None:
    """More accepted than drafted."""
    state = Survival().export_state() | {"past": [{"hits": [2.0], "exposed": [1.0]}]}
    with pytest.raises(ValueError, match="hits must not exceed exposed"):
        Survival().import_state(state)
    with pytest.raises(ValueError, match="past must be a list of at most 4 objects"):
        Survival().import_state(state | {"past": [{}] * 5})
