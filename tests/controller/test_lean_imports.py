"""What a sidecar does not need is not in its memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from controller import lean_imports
from controller.lean_imports import UNUSED, leave_out_pydantic_v1

ROOT = Path(__file__).parents[2]
SIDECAR = """
import sys
from controller import lean_imports, settings, wiring
able = lean_imports.leave_out_pydantic_v1()
wiring.assemble(settings.load(flags={"store": {"path": ":memory:"}}, environ={}))
kept = [name for name in sys.modules if name.startswith("pydantic.v1.")]
sources = sys.modules["linecache"].cache
print(able, bool(kept), any(name.endswith("settings.py") for name in sources))
"""


@pytest.mark.slow
def test_an_assembled_sidecar_has_neither_pydantic_1_nor_the_sources_of_its_settings_in_memory():
    """The whole API is made without `pydantic.v1` where FastAPI can do so, and no docstring was looked up."""
    run = [sys.executable, "-c", SIDECAR]
    able, kept, sources = subprocess.check_output(run, cwd=ROOT, text=True, timeout=60).split()
    assert kept == str(able == "False")
    assert sources == "False"


def test_a_fastapi_that_cannot_do_without_pydantic_1_gets_it(monkeypatch):
    """A release that imports it unguarded: nothing stays left out."""

    class Older:
        def add_api_route(self, *args, **more):
            from pydantic.v1 import BaseModel  # noqa: F401, PLC0415

    monkeypatch.delitem(sys.modules, UNUSED, raising=False)
    monkeypatch.setattr(lean_imports, "APIRouter", Older)
    assert leave_out_pydantic_v1() is False
    assert UNUSED not in sys.modules


def test_what_is_imported_already_is_left_alone(monkeypatch):
    """Somebody needs it."""
    monkeypatch.setitem(sys.modules, UNUSED, sys)
    assert leave_out_pydantic_v1() is False
    assert sys.modules[UNUSED] is sys
