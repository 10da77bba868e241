"""The rules of an order: the API checks by them, and the commands before they ask."""

from __future__ import annotations

MAX_TTL_S = 30 * 86_400.0
"""Longest time after which an order ends by itself."""
MAX_DEPTH = 64
"""Deepest that may be asked for; which depths are built only the engine knows."""
MAX_TEXT = 400
"""Characters of a reason and of an actor."""
