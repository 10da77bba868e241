"""What happens to our own exceptions inside somebody else's engine: counted, logged once, survived."""

from __future__ import annotations

import logging

logger = logging.getLogger("specgov")


class Guard:
    """Counts failures of the hook; logs the first one of each place with its traceback."""

    def __init__(self) -> None:
        self.errors = 0
        self._logged: set[str] = set()

    def failed(self, where: str) -> None:
        """Call from an `except` block; `where` is a constant, so that memory stays bounded."""
        self.errors += 1
        if where not in self._logged:
            self._logged.add(where)
            message = "specgov: %s failed; SGLang goes on (logged once)"
            logger.error(message, where, exc_info=True)  # noqa: LOG014  # called from an except block
