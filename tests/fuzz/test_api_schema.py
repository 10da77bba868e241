"""The whole API against its own description: requests that it allows, requests that it does not, chains.

Zero 500s, and every answer as OpenAPI describes it, links from one request to the next included.
"""

from __future__ import annotations

import asyncio
import os

import hypothesis
import pytest
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from controller import settings as settings_module
from controller import wiring
from tests.controller.conftest import Clock
from tests.controller.fake_engine import FakeEngine

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
LONG = "SPECGOV_FUZZ_S" in os.environ
FUZZ = hypothesis.settings(
    max_examples=2000 if LONG else 20,
    stateful_step_count=12 if LONG else 5,
    deadline=None,
    derandomize=not LONG,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)


class ClockThatMoves(Clock):
    """Each look at it takes a millisecond."""

    def __call__(self):
        self.now_s += 0.001
        return self.now_s


def make_assembly():
    """A sidecar after one turn beside an engine that can be governed."""
    clock = ClockThatMoves()
    pairs = {"store.path": ":memory:", "policy.name": "threshold", "api.max_requests_per_s": 10_000}
    pairs["api.allowed_hosts"] = ["testserver"]
    engine = FakeEngine(clock)
    tree = settings_module.load(flags=settings_module.nested(pairs), environ={})
    made = wiring.assemble(tree, transport=engine.transport(), clock=clock, wall_clock=clock.wall)
    engine.decode(4)

    async def turn():
        await made.sidecar.loop.tick(clock.now_s)
        await made.sidecar.loop._scraper.aclose()

    asyncio.run(turn())
    return made


ASSEMBLY = make_assembly()
SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", ASSEMBLY.app)
SEEN = {"requests": 0}


@pytest.fixture(scope="module", autouse=True)
def _count(request):
    """Say how many requests that were."""
    yield
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"\n{SEEN['requests']} requests to the API, no 500, all answered as described")


@SCHEMA.parametrize()
@FUZZ
def test_every_operation_answers_as_described(case):
    """Generated bodies, parameters and headers, right and wrong."""
    case.call_and_validate(checks=CHECKS)
    SEEN["requests"] += 1


class Chains(SCHEMA.as_state_machine()):
    """Requests in any order, and along the links: orders, pages of the log, ends of orders."""

    def validate_response(self, response, case, **kwargs):
        SEEN["requests"] += 1
        case.validate_response(response, checks=CHECKS)


TestChains = Chains.TestCase
TestChains.settings = FUZZ
