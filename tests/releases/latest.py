"""`make compat-latest`: reads the newest SGLang release and says what would break; exit status 1 if anything.

Meant for a schedule.  It only reads: `SPECGOV_ENGINE_SGLANG=VERSION make test-engine` runs the release.
"""

import sys

from sglang_hooks.releases import SUPPORTED
from tests.releases.source_check import check
from tests.releases.wheels import NoWheelError, Wheel, newest


def report(version, found):
    """(lines, exit status) for a release and its `SourceCheck`."""
    known = "known" if version in SUPPORTED else f"not known yet ({SUPPORTED[-1]} is the newest that is)"
    lines = [f"SGLang {version}: {known}"]
    for what, mismatches, cost in (
        ("governing", found.governing, "the plugin would hook nothing"),
        ("plain decoding", found.plain_decode, "depth 0 would stay SGLang's own"),
    ):
        lines.append(
            f"{what}: " + (f"{len(mismatches)} names differ, {cost}" if mismatches else "all names there")
        )
        lines += [f"  {mismatch}" for mismatch in mismatches]
    broken = bool(found.governing or found.plain_decode)
    if not broken and version not in SUPPORTED:
        lines.append(f"next: SPECGOV_ENGINE_SGLANG={version} make test-engine; then sglang_hooks/releases.py")
    return lines, int(broken)


def main():
    """Print the report."""
    try:
        wheel = Wheel(newest())
    except NoWheelError as error:
        sys.exit(f"the index could not be asked: {error}")
    lines, status = report(wheel.version, check(wheel))
    sys.stdout.write("\n".join(lines) + "\n")
    sys.exit(status)


if __name__ == "__main__":
    main()
