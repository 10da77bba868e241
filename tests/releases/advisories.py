"""`make audit`: asks pip-audit about what an installation brings along, and says how many it could ask about.

    python -m tests.releases.advisories [--may-skip] PIP_AUDIT SITE_PACKAGES

pip-audit calls a package that the index does not answer for "skipped" and ends with 0, also where it was all
of them.  Here a finding ends with 1, always; when nobody could be asked, that is said, and ends with 1 as
well unless `--may-skip`: a test run must not fail for want of a network.
"""

import argparse
import json
import subprocess
import sys

OWN = "specgov"
"""Not to be found before its release."""
ASK_WITHIN_S = 45.0


def judge(report, said, *, may_skip):
    """(lines, exit status) for pip-audit's JSON, or `None`, and what it said beside it."""
    if report is None:
        return [_nobody(said)], int(not may_skip)
    packages = [each for each in report["dependencies"] if each["name"] != OWN]
    asked = [each for each in packages if "skip_reason" not in each]
    if not asked:
        reason = packages[0]["skip_reason"] if packages else "it was given no package"
        return [_nobody(reason)], int(not may_skip)
    found = [(each, advisory) for each in asked for advisory in each["vulns"]]
    lines = [f"advisories: asked about {len(asked)} of {len(packages)} packages, {len(found)} found"]
    lines += [
        f"  {each['name']} {each['version']}: {advisory['id']}, mended in {_versions(advisory)}"
        for each, advisory in found
    ]
    left = ", ".join(each["name"] for each in packages if "skip_reason" in each)
    return [*lines, f"  not asked: {left}"] if left else lines, int(bool(found))


def _nobody(why):
    last = (why.strip().splitlines() or ["no answer"])[-1]
    return f"advisories: not reachable, skipped ({last[:200]})"


def _versions(advisory):
    return ", ".join(advisory["fix_versions"]) or "no version yet"


def ask(pip_audit, packages):
    """pip-audit's report, or `None` when there is none, and what it said beside it."""
    command = [
        pip_audit,
        "--path",
        packages,
        "--format",
        "json",
        "--progress-spinner",
        "off",
        "--timeout",
        "10",
    ]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=ASK_WITHIN_S, check=False)
    except subprocess.TimeoutExpired:
        return None, f"no answer within {ASK_WITHIN_S:g} s"
    try:
        return json.loads(run.stdout), run.stderr
    except ValueError:
        return None, run.stderr


def main():
    """Ask, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--may-skip", action="store_true")
    parser.add_argument("pip_audit")
    parser.add_argument("packages")
    given = parser.parse_args()
    report, said = ask(given.pip_audit, given.packages)
    lines, status = judge(report, said, may_skip=given.may_skip)
    sys.stdout.write("\n".join(lines) + "\n")
    sys.exit(status)


if __name__ == "__main__":
    main()
