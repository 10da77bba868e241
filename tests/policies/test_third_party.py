"""The example of docs/policies.md is run as it stands there."""

from __future__ import annotations

import importlib.metadata
import re
import sys
import types
from pathlib import Path

import pytest

from policies import registry
from policies.guards import GuardParams, stack
from policies.types import OFF_COLD, Arm, Observation

TEXT = (Path(__file__).parents[2] / "docs" / "policies.md").read_text(encoding="utf-8")


@pytest.fixture
def queue_shy(monkeypatch: pytest.MonkeyPatch) -> registry.PolicySpec:
    """The example's module, installed under the entry point that the page names."""
    source = re.search(r"```python\n(.*?)```", TEXT, re.DOTALL).group(1)
    group, name, value = re.search(r'\[project.entry-points."(\S+)"\]\n(\w+) = "(\S+)"', TEXT).groups()
    module = types.ModuleType(value.split(":")[0])
    monkeypatch.setitem(sys.modules, "my_package", types.ModuleType("my_package"))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(source, "docs/policies.md", "exec"), module.__dict__)  # the page is ours
    entry = importlib.metadata.EntryPoint(name, value, group)

    def entry_points(**wanted: str) -> list[importlib.metadata.EntryPoint]:
        return [entry] if wanted["group"] == group and wanted.get("name", name) == name else []

    monkeypatch.setattr(registry, "entry_points", entry_points)
    return registry.find(name)


def test_a_policy_of_others_is_found_and_governs(queue_shy: registry.PolicySpec) -> None:
    """Depth 3 while 2 wait, off while 12 do, inside the guards."""
    policy = stack(queue_shy.make(queue_shy.params()), GuardParams())
    built = (OFF_COLD, Arm(1), Arm(3))
    chosen = [
        policy.decide(Observation(now_s=t, built=built, queue_reqs=waiting, load_age_s=0.0)).schedule.arm_for(
            1
        )
        for t, waiting in ((0.0, 2), (60.0, 12), (120.0, 2))
    ]
    assert chosen == [Arm(3), OFF_COLD, Arm(3)]


def test_the_page_is_thirty_lines_of_code(queue_shy: registry.PolicySpec) -> None:
    """As promised; blank lines aside."""
    source = re.search(r"```python\n(.*?)```", TEXT, re.DOTALL).group(1)
    assert sum(bool(line.strip()) for line in source.splitlines()) <= 30


def test_every_built_in_policy_stands_on_the_page() -> None:
    """None is forgotten."""
    assert all(f"| `{name}`" in TEXT for name in registry.BUILT_IN)
