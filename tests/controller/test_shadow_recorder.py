"""How far a shadow policy is from the active one, where an operator looks for it."""

from __future__ import annotations

import math


async def test_a_shadow_is_compared_over_the_load_and_exported(make):
    """`fixed` says depth 2, the shadow's table off from 32 requests up, and 64 are decoded."""
    bench = await make(policy__shadow="threshold")
    await bench.run(5, batch_size=64)
    said = (await bench.api.get("/v1/policy")).json()["shadow"]
    assert said["difference"] == {"differing_share": 1.0, "predicted_gain": None}
    assert metric(bench, "specgov_shadow_differing_ratio") == 1.0
    assert metric(bench, "specgov_shadow_agrees") == 0.0
    assert math.isnan(metric(bench, "specgov_shadow_predicted_gain_ratio"))


async def test_what_the_shadow_would_bring_is_told_by_the_one_that_can(make):
    """`fixed` expects nothing of any arm; `goodput` beside it does, and names depth 2 itself no worse."""
    bench = await make(policy__shadow="goodput")
    await bench.run(20, batch_size=8)
    gain = metric(bench, "specgov_shadow_predicted_gain_ratio")
    assert gain >= 0.0
    assert (await bench.api.get("/v1/policy")).json()["shadow"]["difference"]["predicted_gain"] == gain


async def test_without_a_shadow_nothing_is_said(make):
    """NaN, not zero."""
    bench = await make()
    await bench.run(3, batch_size=8)
    assert math.isnan(metric(bench, "specgov_shadow_differing_ratio"))
    assert (await bench.api.get("/v1/policy")).json()["shadow"] is None


def metric(bench, name):
    """The value of a metric without labels."""
    return bench.assembly.sidecar.registry.get_sample_value(name)
