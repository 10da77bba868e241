"""Known releases and their faults."""

import pytest

from sglang_hooks.releases import FAULTS, SUPPORTED, faults_of


@pytest.mark.parametrize(
    ("version", "at_deepest"),
    [
        ("0.5.16", [False]),
        ("0.5.17", [False, True]),
        ("0.5.17.post1", [False, True]),
        ("0.5.18", [False]),
        ("0.5.19", []),
        ("0.5.23", []),
        ("0.6.0", []),
        ("main", []),
        (None, []),
    ],
)
def test_a_release_has_the_faults_of_its_range(version, at_deepest):
    """Of a version that cannot be told, nothing is claimed."""
    assert [fault.at_deepest for fault in faults_of(version)] == at_deepest


def test_every_fault_belongs_to_known_releases():
    """Its range begins and ends with one."""
    assert {fault.first for fault in FAULTS} | {fault.last for fault in FAULTS} <= set(SUPPORTED)
