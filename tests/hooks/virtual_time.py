"""Runs an async test in virtual time: a sleep of an hour takes no time and is exact."""

import asyncio
import functools

import looptime


def virtual_time(test):
    """Decorate an async test; its loop's clock starts at 0 and jumps to whatever is due next."""

    @functools.wraps(test)
    def run(*args, **kwargs):
        with asyncio.Runner(loop_factory=lambda: looptime.new_event_loop(start=0)) as runner:
            runner.run(test(*args, **kwargs))

    return run
