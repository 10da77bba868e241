"""Keeps the half of pydantic that nothing here uses out of a sidecar's memory: 2 MB.

FastAPI refuses models of pydantic 1, and imports `pydantic.v1` to know one when it sees it.  Newer releases
of it take a pydantic without that half for one that has no such models; with others, nothing is left out.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace

from fastapi import APIRouter
from fastapi.encoders import jsonable_encoder

UNUSED = "pydantic.v1"


def leave_out_pydantic_v1() -> bool:
    """Before the first route is made, for the whole process; whether this FastAPI can do without."""
    if UNUSED in sys.modules:
        return sys.modules[UNUSED] is None
    sys.modules[UNUSED] = None  # type: ignore[assignment]  # Python's way to say that there is none
    try:
        APIRouter().add_api_route("/", lambda: 0, response_model=int)
        jsonable_encoder(SimpleNamespace())
    except ImportError:
        del sys.modules[UNUSED]
        return False
    return True
