"""What a release's source says about governing it."""

from dataclasses import dataclass

from sglang_hooks import compat

GOVERNING = compat.REGISTRY_TARGETS + compat.SCHEDULER_TARGETS + compat.HTTP_TARGETS
"""Without these the plugin hooks nothing."""


@dataclass(frozen=True)
class SourceCheck:
    """Mismatches by name; empty: all is there with the expected parameters."""

    governing: tuple[str, ...]
    plain_decode: tuple[str, ...]


def check(wheel):
    """The names that the hook touches, looked up in `wheel`."""
    return SourceCheck(
        tuple(compat.check(GOVERNING, wheel.source)),
        tuple(compat.check(compat.PLAIN_DECODE_TARGETS, wheel.source)),
    )
