"""The `specgov` command: Ctrl-C ends it quietly also while its parts are still being loaded."""

from __future__ import annotations

import os
import signal

INTERRUPTED = 130
"""`controller.cli._exit.Exit.INTERRUPTED`, which is not loaded yet."""


def main() -> None:
    """Entry point.  Until a command begins nothing is open, so nothing needs to be closed."""
    before = signal.getsignal(signal.SIGINT)
    attended = before is signal.default_int_handler  # a job in the background ignores it, and is to go on so
    if attended:
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    from controller import cli  # noqa: PLC0415  takes most of the first second

    cli.main(lambda: signal.signal(signal.SIGINT, before) if attended else None)


if __name__ == "__main__":
    main()
