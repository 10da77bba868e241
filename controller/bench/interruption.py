"""Ctrl-C and SIGTERM in a benchmark: what runs is cancelled, so that it can hand back and write."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

Found = TypeVar("Found")
_HEEDED = (signal.SIGINT, signal.SIGTERM)


async def until_told(work: Coroutine[Any, Any, Found]) -> tuple[Found | None, signal.Signals | None]:
    """Run `work`; the first SIGINT or SIGTERM cancels it.  What it returned, and the signal if there was one.

    Later signals are ignored: what `work` still does once cancelled must be bounded in time.
    """
    task = asyncio.create_task(work, name="benchmark")
    told: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        if not told:
            task.cancel()
        told.append(number)

    loop = asyncio.get_running_loop()
    for number in _HEEDED:
        loop.add_signal_handler(number, stop, number)
    try:
        await asyncio.wait([task])
    finally:
        for number in _HEEDED:
            loop.remove_signal_handler(number)
    if told and task.cancelled():
        return None, told[0]
    return task.result(), told[0] if told else None
