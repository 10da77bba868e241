"""Secrets: from a setting or, with rotation, from a file.  Never shown, never logged."""

from __future__ import annotations

import hmac
import logging
from pathlib import Path

from controller.errors import SettingsError

log = logging.getLogger(__name__)


class TokenSource:
    """A secret that is read again whenever its file changes."""

    def __init__(self, value: str | None = None, file: Path | None = None) -> None:
        """Raises `SettingsError` when `file` cannot be read."""
        self._value = value
        self._file = file
        self._stamp: tuple[int, int] | None = None
        if file is not None:
            try:
                self._value = self._read(file)
            except OSError as error:
                raise SettingsError(f"{file} must be a readable token file: {error.strerror}") from None

    @property
    def configured(self) -> bool:
        """Whether a secret is asked for at all, though its file be empty now."""
        return self._file is not None or self._value is not None

    def get(self) -> str | None:
        """The secret now; `None` when none is configured.  An unreadable file keeps the last one."""
        if self._file is not None:
            try:
                self._value = self._read(self._file)
            except OSError:
                return self._value
        return self._value

    @property
    def problem(self) -> str | None:
        """Why nobody can present the secret: its file, by name, is empty; `None`: somebody can."""
        return f"{self._file} is empty: no token matches" if self._file and self.get() is None else None

    def _read(self, file: Path) -> str | None:
        status = file.stat()
        stamp = (status.st_mtime_ns, status.st_size)
        if stamp != self._stamp:
            self._value, self._stamp = file.read_text(encoding="utf-8").strip() or None, stamp
            if self._value is None:
                log.warning("the token file %s is empty: there is no token to accept or to send", file)
        return self._value

    def matches(self, presented: str) -> bool:
        """Whether `presented` is the secret; takes the same time whatever differs."""
        secret = self.get()
        return secret is not None and hmac.compare_digest(_bytes(presented), _bytes(secret))

    def __repr__(self) -> str:
        return "TokenSource(***)"


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
