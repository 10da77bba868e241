"""For all tests."""

import asyncio


def pytest_configure():
    """Leave no event loop lying about.

    looptime asks for the current loop before every test; before the first async one that would make a
    loop that nobody closes.  Once a loop, or none, was set, asking makes no new one.
    """
    asyncio.set_event_loop(None)
