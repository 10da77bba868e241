"""Writes what is generated; with `--check` only says what would change (exit status 1)."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import yaml

from deploy.generate.alerts import groups, prometheus_rule
from deploy.generate.dashboards import dashboards, to_json

TARGET = Path(__file__).parents[1] / "monitoring"
HEADER = "# Made by `python -m deploy.generate`. Change deploy/generate/alerts.py instead.\n"


def files() -> dict[Path, str]:
    """Every generated file and its content."""
    made = {
        TARGET / "rules.yaml": HEADER + _yaml(groups()),
        TARGET / "prometheus-rule.yaml": HEADER + _yaml(prometheus_rule()),
    }
    for name, dashboard in dashboards().items():
        made[TARGET / "dashboards" / f"{name}.json"] = to_json(dashboard)
    return made


def changed() -> list[Path]:
    """Files whose content on disk is not what would be generated."""
    return [path for path, content in files().items() if not path.exists() or path.read_text() != content]


def _yaml(value: object) -> str:
    return yaml.safe_dump(value, sort_keys=False, width=110, allow_unicode=True)


def main() -> int:
    """Write, or check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    differing = changed()
    for path in differing:
        sys.stdout.write(f"{path.relative_to(TARGET.parents[1])}\n")
    if parser.parse_args().check:
        return 1 if differing else 0
    for path in differing:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(files()[path])
    return 0


if __name__ == "__main__":
    sys.exit(main())
