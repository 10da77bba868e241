"""What keeps a sidecar's memory level."""

from __future__ import annotations

import gc
import weakref

import pytest
from fastapi import FastAPI

from controller import serving
from controller.cli import run
from controller.settings import load


class Cyclic:
    """Only the collector can end it."""

    def __init__(self):
        self.itself = self


@pytest.fixture
def collecting_by_hand():
    """No collection comes by chance, and what a test sets aside does not stay so."""
    gc.disable()
    yield
    gc.unfreeze()
    gc.enable()


@pytest.mark.usefixtures("collecting_by_hand")
@pytest.mark.parametrize(("tenths", "gone"), [(0, True), (10, False), (590, False), (600, True)])
async def test_garbage_is_swept_once_a_minute(tenths, gone):
    """The server counts tenths of a second, from 0."""
    garbage_of_a_turn = weakref.ref(Cyclic())
    await serving.make_server(FastAPI()).on_tick(tenths)
    assert (garbage_of_a_turn() is None) == gone


@pytest.mark.usefixtures("collecting_by_hand")
def test_a_sidecar_sets_aside_what_it_was_made_of_before_it_begins(monkeypatch):
    """Else each of those collections looks at all that was imported."""
    seen = []

    async def serve(assembly, listener):
        seen.append(gc.get_freeze_count())
        await assembly.aclose()

    monkeypatch.setattr(serving, "serve", serve)
    monkeypatch.setattr("controller.logs.configure", lambda *args: None)
    monkeypatch.setattr("controller.lean_imports.leave_out_pydantic_v1", lambda: False)
    run.start(load(flags={"api": {"port": 0}, "store": {"path": ":memory:"}}, environ={}))
    assert seen[0] > 10_000
