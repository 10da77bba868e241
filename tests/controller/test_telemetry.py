"""Metrics: closed label sets, bounded whatever the engine says."""

from __future__ import annotations


async def test_an_engine_cannot_add_label_values(make):
    """Buckets that docs/protocol.md does not name are left out."""
    bench = await make()
    await bench.run(2, batch_size=4)
    for bucket in (5, 7, 10**9):
        bench.engine.cells[(bucket, 2, "on")] = dict(bench.engine.cells[(4, 2, "on")])
    await bench.run(2, batch_size=4)
    text = (await bench.api.get("/metrics")).text
    assert 'specgov_engine_steps_total{batch_bucket="4"' in text
    for bucket in (5, 7, 10**9):
        assert f'batch_bucket="{bucket}"' not in text


async def test_the_engines_restarts_and_failed_requests_are_counted(make):
    """Counters go on over a restart of the engine."""
    bench = await make()
    await bench.run(3, batch_size=4)
    bench.engine.start()
    await bench.run(2, batch_size=4)
    bench.engine.plugin = False
    await bench.tick()
    lines = (await bench.api.get("/metrics")).text.splitlines()
    assert "specgov_engine_restarts_total 1.0" in lines
    assert "specgov_engine_decode_steps_total 30.0" in lines
    assert 'specgov_scrape_errors_total{endpoint="speculation",error="not_found"} 1.0' in lines


async def test_an_override_and_its_end_are_exported(make):
    """For the alert that says that one is about to end."""
    bench = await make()
    await bench.api.put("/v1/override", json={"mode": "off", "reason": "x", "ttl_s": 60})
    await bench.tick()
    lines = (await bench.api.get("/metrics")).text.splitlines()
    assert "specgov_override_active 1.0" in lines
    assert 'specgov_mode{mode="off"} 1.0' in lines
    assert "specgov_override_expiry_timestamp_seconds 1.80000106e+09" in lines
