"""For all tests."""

import asyncio

from hypothesis import settings

# The same examples every time: a test that fails today failed yesterday.  `make fuzz` draws new ones.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


def pytest_configure():
    """Leave no event loop lying about.

    looptime asks for the current loop before every test; before the first async one that would make a
    loop that nobody closes.  Once a loop, or none, was set, asking makes no new one.
    """
    asyncio.set_event_loop(None)
