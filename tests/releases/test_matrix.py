"""The support matrix and the report on the newest release."""

import json

from sglang_hooks.releases import PLAIN_DECODE, SUPPORTED
from tests.engine.environment import INSTALLED
from tests.engine.run_record import label, merge
from tests.releases import latest, matrix
from tests.releases.source_check import SourceCheck

NOTHING_RAN = {version: {"governing": [], "plain_decode": []} for version in SUPPORTED}


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_page_is_up_to_date_with_what_was_recorded():
    """`python -m tests.releases` makes it so."""
    assert matrix.current() == matrix.PAGE.read_text()


def test_the_records_are_of_supported_releases_only():
    """Each has its source read; runs are of no other release."""
    assert tuple(json.loads(matrix.SOURCE.read_text())) == SUPPORTED
    assert set(json.loads(matrix.RUNS.read_text())) <= set(SUPPORTED)


def test_what_did_not_run_is_said_not_to_have_run():
    """No record, no claim."""
    for line in matrix.table(NOTHING_RAN, {}).splitlines()[2:]:
        governing, plain_decode, *runs = cells(line)[1:6]
        assert governing == "all there"
        assert plain_decode.startswith("all there; ")
        assert runs[0] == runs[2] == "not run"
        assert runs[1] == (
            "all of `make test-engine`, at every run of CI" if cells(line)[0] == INSTALLED else "not run"
        )


def test_plain_decoding_is_used_only_where_it_ran():
    """On the pinned release, or on a GPU, or on the CPU engine: alone and under load, no test failed."""
    runs = json.loads(matrix.RUNS.read_text())
    for version in set(PLAIN_DECODE) - {INSTALLED}:
        cpu = runs[version].get("cpu", {})
        assert {"overlap", "plain_decode"} <= set(cpu) or runs[version].get("gpu")
        assert not any(counts["failed"] for counts in cpu.values())


def test_differing_names_and_failed_tests_are_shown():
    """A run that failed is not hidden among those that passed."""
    source = NOTHING_RAN | {"0.5.16": {"governing": [], "plain_decode": ["a takes (x)", "b is missing"]}}
    runs = {"0.5.16": {"plugin": {"hooks": 4}, "cpu": {"tp2": {"passed": 7, "failed": 1}}}}
    row = cells(matrix.table(source, runs).splitlines()[2])
    assert row == [
        "0.5.16",
        "all there",
        "2 differ; not used",
        "4 hooks applied",
        "tp2: 7 passed, **1 failed**",
        "not run",
        "1",
    ]


def test_a_newest_release_that_fits_leads_to_running_it():
    """Status 0, and the next step."""
    lines, status = latest.report("9.9.9", SourceCheck((), ()))
    assert status == 0
    assert lines[-1].startswith("next: SPECGOV_ENGINE_SGLANG=9.9.9 make test-engine")


def test_a_newest_release_that_breaks_says_what_and_at_what_cost():
    """Status 1 with each name."""
    lines, status = latest.report("9.9.9", SourceCheck(("a is missing",), ("b takes (x)",)))
    assert status == 1
    assert lines[1:] == [
        "governing: 1 names differ, the plugin would hook nothing",
        "  a is missing",
        "plain decoding: 1 names differ, depth 0 would stay SGLang's own",
        "  b takes (x)",
    ]


def test_a_test_is_counted_under_its_servers_mode_or_its_file():
    """A parameter that is no mode, such as a page size, says nothing about a server."""
    assert label("tests/engine/test_sidecar.py::test_a[overlap]") == "overlap"
    assert label("tests/engine/test_not_governable.py::test_b[static-why not]") == "static"
    assert label("tests/engine/test_plain_decode.py::test_c[16]") == "plain_decode"
    assert label("tests/engine/test_exported_hooks.py::test_d") == "exported_hooks"


def test_a_session_replaces_the_modes_that_it_ran_and_keeps_the_others():
    """Counts are of whole sessions, never added up."""
    record = {"cpu": {"tp2": {"passed": 3, "failed": 0}, "sync": {"passed": 9, "failed": 0}}}
    merge(
        record,
        {"sync": {"passed": 1, "failed": 2}, "plugin_loads": {"passed": 1, "failed": 0}},
        {"hooks": 13},
    )
    assert record == {
        "cpu": {"tp2": {"passed": 3, "failed": 0}, "sync": {"passed": 1, "failed": 2}},
        "plugin": {"hooks": 13},
    }
