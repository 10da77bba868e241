"""For all tests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def main_thread_loop() -> Iterator[None]:
    """An event loop for the main thread that is closed at the end.

    looptime asks for the thread's loop around every test, synchronous ones included; the one that asyncio
    then makes would never be closed, which `filterwarnings = error` takes for a leak.
    """
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    loop.close()
