"""Cost profiles: what is measured comes back, what is not is stated, what is wrong is named."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.interpolate import PchipInterpolator

from controller.simulation.arms import arm_costs, arm_rows
from controller.simulation.cost_profile import (
    InvalidProfileError,
    load_profile,
    parse_profile,
    shipped_profiles,
)
from controller.simulation.pchip import interpolate
from tests.controller.simulation.conftest import PROFILE


@given(
    st.lists(
        st.tuples(st.floats(0.1, 5), st.integers(-10_000, 10_000).map(lambda n: n / 1000)),
        min_size=2,
        max_size=9,
    )
)
def test_our_pchip_is_scipys(steps):
    """The forty lines give what the reference implementation gives, for any data."""
    x = np.cumsum([width for width, _ in steps])
    y = np.array([value for _, value in steps])
    at = np.linspace(x[0], x[-1], 50)
    assert interpolate(x, y, at) == pytest.approx(PchipInterpolator(x, y)(at), abs=1e-9)


def test_measured_points_come_back_exactly():
    """Interpolation goes through every point of every shipped profile."""
    for name in shipped_profiles():
        profile = load_profile(name)
        for row, points in profile.rows.items():
            seconds = profile.step_seconds(row, 256)
            for size, ms in zip(points.batch_sizes, points.step_ms, strict=True):
                assert seconds[size] * 1e3 == pytest.approx(ms, rel=1e-12), (name, row, size)


def test_a_monotone_row_is_interpolated_monotonely():
    """More requests never cost less where the measurement says so: no overshoot between points."""
    seconds = load_profile("h200_llama8b_triton").step_seconds("plain", 256)
    assert (np.diff(seconds[1:]) > 0).all()


def test_a_row_with_fewer_sizes_keeps_its_ratio_to_the_widest_row():
    """`depth_2` is known at 4 only, 2x the plain row there: so it is 2x at 1 and at 16 too."""
    data = {"schema": 1, "step_ms": {"plain": {"1": 10, "4": 16, "16": 40}, "depth_2": {"4": 32}}}
    seconds = parse_profile(data).step_seconds("depth_2", 16)
    assert seconds[[1, 4, 16]] * 1e3 == pytest.approx([20, 32, 80])


def test_beyond_the_widest_row_time_grows_with_its_last_slope():
    """(16 - 12) ms over (4 - 2) requests are 2 ms a request: 16 + 4 * 2 = 24 at batch size 8."""
    assert parse_profile(PROFILE).step_seconds("plain", 8)[8] * 1e3 == pytest.approx(24)


def test_context_above_the_measured_mean_is_added_and_below_it_taken_off():
    """2 requests hold 3000 tokens, 1000 more than measured: 1000 * 2 ms / 1e6 on top of 12 ms."""
    data = {**PROFILE, "context": {"per_request_tokens": 1000, "ms_per_million_tokens": {"plain": 2000}}}
    profile = parse_profile(data)
    cost = arm_costs(profile, arm_rows(profile), 4)[0, "cold"]
    sizes = np.array([2, 2])
    seconds = cost.seconds(sizes, np.array([3000, 1000]))
    assert seconds * 1e3 == pytest.approx([12 + 2, 12 - 2])


def test_off_is_plain_with_plain_decoding_and_sglangs_own_without():
    """The arms are the rows that are there; without plain decoding and a skip row there is no cold gear."""
    profile = parse_profile(PROFILE)
    assert arm_rows(profile)[0, "cold"] == "plain"
    assert arm_rows(profile)[0, "frozen"] == "plain"
    assert not {(0, "cold"), (0, "frozen")} & set(arm_rows(profile, plain_decode=False))
    assert list(arm_rows(profile)) == [(0, "warm"), (0, "cold"), (0, "frozen"), (1, "on"), (2, "on")]


def test_the_warm_gear_of_the_plugin_has_its_own_row():
    """With plain decoding warm is `off_warm` where that was measured, else SGLang's own off."""
    rows = {**PROFILE["step_ms"], "off_warm": {"1": 11}}
    profile = parse_profile({**PROFILE, "step_ms": rows})
    assert arm_rows(profile)[0, "warm"] == "off_warm"
    assert arm_rows(profile, plain_decode=False)[0, "warm"] == "depth_0"
    assert arm_rows(parse_profile(PROFILE))[0, "warm"] == "depth_0"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("schema",), 2, "schema must be 1, got 2"),
        (("step_ms",), {}, "step_ms must be an object with at least one row"),
        (("step_ms",), {"plain": {"1": 5}}, "step_ms must have a row beside 'plain', which cannot speculate"),
        (("step_ms", "depth_x"), {"1": 1}, "step_ms.depth_x must be one of plain,"),
        (("step_ms", "plain"), {}, "step_ms.plain must map at least one batch size"),
        (("step_ms", "plain", "0"), 1, "step_ms.plain.0 must be named by a batch size"),
        (("step_ms", "plain", "1"), 0, "step_ms.plain.1 must be a finite number > 0, got 0"),
        (("step_ms", "plain", "1"), "5", "step_ms.plain.1 must be a finite number > 0, got '5'"),
        (("step_ms", "plain", "1"), True, "step_ms.plain.1 must be a finite number > 0, got True"),
        (("step_ms", "plain", "1"), float("nan"), "step_ms.plain.1 must be a finite number > 0, got nan"),
        (("prefill",), {"fixed_ms": -1}, "prefill.fixed_ms must be a finite number >= 0, got -1"),
        (("prefill",), {"fixed_ms": 1}, "prefill.ms_per_1k_tokens must be a finite number >= 0, got None"),
        (
            ("prefill",),
            {"fixed_ms": 1, "ms_per_1k_tokens": 1, "draft_ms_per_request": "x"},
            "prefill.draft_ms_per_request must be a finite number >= 0, got 'x'",
        ),
        (
            ("context",),
            {"ms_per_million_tokens": {"x": 1}},
            "context.ms_per_million_tokens.x must name a row",
        ),
    ],
)
def test_a_bad_profile_is_refused_by_field(path: tuple[str, ...], value: Any, message: str):
    """The message says field, rule and value."""
    data = copy.deepcopy(PROFILE)
    at = data
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    with pytest.raises(InvalidProfileError) as error:
        parse_profile(data)
    assert str(error.value).startswith(message)


def test_an_unknown_profile_lists_the_shipped_ones():
    """Who mistypes a name sees which there are."""
    with pytest.raises(FileNotFoundError, match="h200_llama8b_fa3, h200_llama8b_triton"):
        load_profile("h100")
