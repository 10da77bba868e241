"""The hook's switches in SGLang's environment."""

from __future__ import annotations

import logging
import os

logger = logging.getLogger("specgov")

_YES = ("1", "on", "true", "yes")
_NO = ("0", "off", "false", "no")


def switch(name: str, *, in_doubt: bool = False) -> bool | None:
    """Whether the variable `name` says 1 or 0 (on, true, yes; off, false, no); `None`: it is not set.

    Anything else is logged and taken as `in_doubt`, which is what has the hook do less.
    """
    text = os.environ.get(name, "").strip()
    if not text:
        return None
    if text.lower() in _YES + _NO:
        return text.lower() in _YES
    logger.error("%s must be 0 or 1, got %r; taken as %d", name, text, in_doubt)
    return in_doubt


def setting(name: str) -> str:
    """The variable `name` as it was set, for a message, cut short: its value may be anything."""
    return f"{name}={os.environ.get(name, '').strip()[:20]}"
