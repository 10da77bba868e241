"""The rules of an order: the API checks by them, and the commands before they ask; and who asks."""

from __future__ import annotations

AGENT = "specgov-command"
"""What the commands call themselves in `User-Agent`: a person asks, who is not to wait for a dashboard."""
MAX_TTL_S = 30 * 86_400.0
"""Longest time after which an order ends by itself."""
MIN_TTL_S = 1.0
"""Shortest such time: an order that is over before a turn has seen it would only end the one before it."""
MAX_DEPTH = 64
"""Deepest that may be asked for; which depths are built only the engine knows."""
MAX_TEXT = 400
"""Characters of a reason and of an actor."""
