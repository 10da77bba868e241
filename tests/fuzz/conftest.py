"""How long to fuzz: a little by default, `SPECGOV_FUZZ_S` seconds a target with `make fuzz`."""

from __future__ import annotations

import os

import pytest

from tests.controller.conftest import clock, make

__all__ = ["clock", "make"]


@pytest.fixture
def seconds():
    """Seconds for one target; 0: the short run of the ordinary tests."""
    return float(os.environ.get("SPECGOV_FUZZ_S", "0"))
