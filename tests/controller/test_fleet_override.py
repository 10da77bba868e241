"""One watched file switches a fleet, and a mistake in it switches nothing."""

import json
import re
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from controller.api_models import OverrideBody
from controller.fleet_keeper import FleetKeeper
from controller.fleet_override import FleetOverrideFile
from controller.order_text import Printable, in_words
from controller.overrides import Override, Overrides
from controller.store import Store
from policies.types import Mode

ROOT = Path(__file__).parents[2]
OFF = {"mode": "off", "reason": "bad kernel"}


@pytest.fixture
def file(tmp_path):
    """A watched path with nothing there yet."""
    return FleetOverrideFile(tmp_path / "override.json")


def write(file, content):
    """Put a dict as JSON, or a text as it is."""
    file.path.write_text(content if isinstance(content, str) else json.dumps(content))


def test_without_a_file_there_is_no_override_and_no_error(file):
    """The ConfigMap is optional."""
    assert file.poll(0.0) is None
    assert file.error is None


def test_the_file_is_followed_when_it_comes_changes_and_goes(file):
    """off, then on at depth 2, then nothing."""
    write(file, OFF)
    assert file.poll(0.0).mode == "off"
    write(file, {"mode": "on", "depth": 2, "reason": "again", "actor": "ann"})
    found = file.poll(1.0)
    assert (found.mode, found.depth, found.reason, found.actor) == ("on", 2, "again", "ann")
    file.path.unlink()
    assert file.poll(2.0) is None


@pytest.mark.parametrize("content", ["", " \n"])
def test_an_empty_file_ends_nothing_and_says_how_to_end_it(file, content):
    """`: > override.json` is a slip as `{` is; what ends an order is to delete the file."""
    write(file, OFF)
    file.poll(0.0)
    write(file, content)
    assert file.poll(1.0).mode == "off"
    assert file.error == f"{file.path} is empty, which ends no order: delete the file to end the fleet's"
    file.path.unlink()
    assert file.poll(2.0) is None
    assert file.error is None


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ('{"mode": "of', "JSON"),
        ({"mode": "of", "reason": "x"}, "mode"),
        ({"mode": "auto", "reason": "x"}, "mode"),
        ({"mode": "off"}, "reason"),
        ({"mode": "off", "reason": ""}, "reason"),
        ({"mode": "off", "reason": "x", "depth": 2}, "depth must be left out unless mode is on"),
        ({"mode": "on", "reason": "x", "depth": 0}, "depth"),
        ({"mode": "on", "reason": "x", "depth": "many"}, "depth"),
        ({"mode": "off", "reason": "x", "untill": "2027-01-31T06:00:00Z"}, "untill"),
        ({"mode": "off", "reason": "x", "until": "2027-01-31T06:00:00"}, "until"),
        ({"mode": "off", "reason": "x" * 20_000}, "JSON"),
        ('{"mode": "on", "reason": "x", "mode": "off"}', "an object has the key 'mode' twice: leave one out"),
    ],
)
def test_a_wrong_file_keeps_what_was_in_force_and_says_what_is_wrong(file, content, named):
    """Neither switched nor ended by a typing mistake; mended as soon as the file is."""
    write(file, OFF)
    file.poll(0.0)
    write(file, content)
    assert file.poll(1.0).mode == "off"
    assert named in file.error
    write(file, {"mode": "native", "reason": "mended"})
    assert file.poll(2.0).mode == "native"
    assert file.error is None


@pytest.mark.parametrize("field", ["reason", "actor"])
@pytest.mark.parametrize(
    "text",
    [
        "a\nb",
        "a\tb",
        "a\x1b[31mb",
        "a\x7fb",
        "a\x9b31mb",
        "a\x85b",
        "a\u200bb",
        "a\u2028b",
        "a\u202eb",
        "a\u2066b",
        "x" * 401,
    ],
)
def test_the_texts_of_the_file_obey_the_same_rule_as_those_over_rest(file, field, text):
    """Whoever may write the ConfigMap may not write into the terminals of those who read it."""
    over_rest = {"mode": "off", "reason": "x", field: text}
    with pytest.raises(ValidationError) as refused:
        OverrideBody.model_validate(over_rest)
    write(file, over_rest)
    assert file.poll(0.0) is None
    (fault,) = refused.value.errors()
    assert file.error == f"{file.path}: {field}: {in_words(fault)}"
    write(file, {**over_rest, field: "a" * 400})
    assert getattr(file.poll(1.0), field) == "a" * 400


def test_a_wrong_text_is_named_in_words(file):
    """No regular expression at three in the morning; a blank reason is none."""
    write(file, {"mode": "off", "reason": "bad\nkernel"})
    file.poll(0.0)
    rule = (
        "must be one line, without control characters (line breaks, tabs, turns of direction,"
        " zero-width spaces)"
    )
    assert file.error == f"{file.path}: reason: {rule}"
    write(file, {"mode": "off", "reason": "  "})
    file.poll(1.0)
    assert file.error == f"{file.path}: reason: String should have at least 1 character"


def test_the_helm_value_obeys_the_rule_of_the_file_that_it_becomes():
    """A text that every sidecar would refuse is refused before it is installed."""
    schema = json.loads((ROOT / "deploy" / "helm" / "specgov" / "values.schema.json").read_text())
    rule = TypeAdapter(Printable).json_schema()
    printable = schema["definitions"]["printable"]
    assert printable["maxLength"] == rule["maxLength"] == 400
    assert re.compile(printable["pattern"]).pattern == rule["pattern"].encode().decode("unicode_escape")
    for field in ("reason", "actor"):
        assert schema["properties"]["fleetOverride"]["properties"][field] == {
            "$ref": "#/definitions/printable"
        }


def test_a_wrong_file_at_the_start_puts_nothing_in_force(file):
    """Nothing is guessed."""
    write(file, "off")
    assert file.poll(0.0) is None
    assert file.error


def test_the_override_ends_at_its_time_though_the_file_stays(file):
    """2027-01-31T06:00:00Z is 1801375200 s after the epoch."""
    write(file, {**OFF, "until": "2027-01-31T07:00:00+01:00"})
    assert file.poll(1801375199.0).mode == "off"
    assert file.poll(1801375200.0) is None


def test_a_swapped_link_is_seen_as_kubernetes_makes_it(tmp_path):
    """A mounted ConfigMap changes by replacing the link `..data`."""
    for version, mode in (("one", "off"), ("two", "native")):
        (tmp_path / version).mkdir()
        (tmp_path / version / "override.json").write_text(json.dumps({"mode": mode, "reason": "x"}))
    (tmp_path / "..data").symlink_to("one")
    (tmp_path / "override.json").symlink_to("..data/override.json")
    file = FleetOverrideFile(tmp_path / "override.json")
    assert file.poll(0.0).mode == "off"
    (tmp_path / "..tmp").symlink_to("two")
    (tmp_path / "..tmp").replace(tmp_path / "..data")
    assert file.poll(1.0).mode == "native"


def test_an_unreadable_path_keeps_what_was_in_force(file):
    """A folder where the file should be is an error, not the end of the override."""
    write(file, OFF)
    file.poll(0.0)
    file.path.unlink()
    file.path.mkdir()
    assert file.poll(1.0).mode == "off"
    assert "must be readable" in file.error


def layered(tmp_path):
    """A pod's orders over a fleet file, with a store in memory."""
    file = FleetOverrideFile(tmp_path / "override.json")
    return file, Overrides(Store(Path(":memory:"), max_rows=100, max_bytes=1 << 20), file)


def run_before(overrides, file):
    """One turn's record of a sidecar that then ends: its store."""
    FleetKeeper(file, overrides._store).record(None)
    overrides.record(None)
    return overrides._store


def restarted(store, path):
    """A sidecar that goes on from `store`."""
    file = FleetOverrideFile(path)
    return FleetKeeper(file, store), Overrides(store, file)


def order(mode, *, at, expires=None):
    """An order given over REST."""
    return Override(Mode(mode), None, "mine", "ann", at, expires)


def in_force(overrides, now):
    """(mode, scope) in force, or None."""
    found = overrides.current(now)
    return found and (str(found.mode), found.scope)


def test_an_order_on_the_pod_wins_and_the_fleets_comes_back_when_it_ends(tmp_path):
    """Fleet off; on this pod on from 10 s to 20 s; then off again."""
    file, overrides = layered(tmp_path)
    write(file, OFF)
    assert in_force(overrides, 5.0) == ("off", "fleet")
    overrides.set(order("on", at=10.0, expires=20.0))
    assert in_force(overrides, 15.0) == ("on", "pod")
    assert overrides.fleet(15.0).mode == "off", "the fleet's order still shows"
    assert in_force(overrides, 20.0) == ("off", "fleet")


def test_auto_takes_one_pod_out_of_an_order_of_the_fleet(tmp_path):
    """How one finds out whether the fault is over; ending the order puts the pod back."""
    file, overrides = layered(tmp_path)
    write(file, OFF)
    overrides.set(order("auto", at=1.0))
    assert in_force(overrides, 2.0) == ("auto", "pod")
    overrides.clear(100.0)
    assert in_force(overrides, 3.0) == ("off", "fleet")


def test_what_auto_suspends_is_that_order_of_the_fleet_and_no_later_one(tmp_path):
    """The same text written again is the same order; another one is obeyed here too, and so is the next."""
    file, overrides = layered(tmp_path)
    write(file, OFF)
    overrides.set(order("auto", at=1.0))
    write(file, json.dumps(OFF, indent=2))
    assert in_force(overrides, 2.0) == ("auto", "pod")
    write(file, {"mode": "native", "reason": "the kernel hangs"})
    assert in_force(overrides, 3.0) == ("native", "fleet")
    assert overrides.end_if_over(3.0).mode is Mode.AUTO
    write(file, OFF)
    assert in_force(overrides, 4.0) == ("off", "fleet")


def test_what_auto_suspends_ends_with_the_fleets_order(tmp_path):
    """Deleted and given again, by the same words: it is a new order."""
    file, overrides = layered(tmp_path)
    write(file, OFF)
    overrides.set(order("auto", at=1.0))
    file.path.unlink()
    assert overrides.end_if_over(2.0).mode is Mode.AUTO
    write(file, OFF)
    assert in_force(overrides, 3.0) == ("off", "fleet")


def test_a_suspension_outlives_a_restart_and_a_spoilt_file_but_not_a_newer_order(tmp_path):
    """Kept with the fleet's order that it suspends; a file that is wrong by then changes nothing."""
    file, before = layered(tmp_path)
    write(file, OFF)
    before.set(order("auto", at=1.0))
    store = run_before(before, file)
    write(file, "{")
    _, after = restarted(store, file.path)
    assert in_force(after, 2.0) == ("auto", "pod")
    write(file, {"mode": "native", "reason": "newer"})
    _, after = restarted(store, file.path)
    assert in_force(after, 3.0) == ("native", "fleet")


def test_auto_ends_the_pods_own_order_before_it_suspends_the_fleets(tmp_path):
    """Off for the fleet, on here: the first auto leads back to off, the second out of it."""
    file, overrides = layered(tmp_path)
    write(file, OFF)
    overrides.set(order("on", at=1.0))
    overrides.set(order("auto", at=2.0))
    assert in_force(overrides, 3.0) == ("off", "fleet")
    overrides.set(order("auto", at=4.0))
    assert in_force(overrides, 5.0) == ("auto", "pod")


def test_an_order_of_the_pod_stays_through_orders_of_the_fleet(tmp_path):
    """Off here for a broken card is not lifted because the fleet's order ended: only auto is tied to that."""
    file, overrides = layered(tmp_path)
    write(file, {"mode": "native", "reason": "x"})
    overrides.set(order("off", at=1.0))
    file.path.unlink()
    assert in_force(overrides, 2.0) == ("off", "pod")


@pytest.mark.parametrize("content", ["", "{", '{"mode": "of", "reason": "x"}'])
def test_a_file_that_was_spoilt_while_the_sidecar_was_down_ends_nothing(tmp_path, content):
    """The fleet's order is kept in the database, and ends when the file is deleted."""
    file, before = layered(tmp_path)
    write(file, OFF)
    before.current(1.0)
    store = run_before(before, file)
    write(file, content)
    keeper, after = restarted(store, file.path)
    assert in_force(after, 2.0) == ("off", "fleet")
    assert after.fleet_problem is not None
    file.path.unlink()
    assert in_force(after, 3.0) is None
    keeper.record(None)
    write(file, content)
    _, later = restarted(store, file.path)
    assert in_force(later, 4.0) is None


def test_auto_without_an_order_of_the_fleet_is_no_order(tmp_path):
    """Nothing is in force afterwards."""
    _, overrides = layered(tmp_path)
    overrides.set(order("off", at=1.0))
    overrides.set(order("auto", at=2.0))
    assert overrides.current(3.0) is None


def test_since_when_the_fleets_order_holds_is_when_it_was_first_seen(tmp_path):
    """Not the time of the latest poll; a changed order starts anew."""
    file, overrides = layered(tmp_path)
    write(file, OFF)
    assert overrides.current(100.0).set_unix_s == 100.0
    assert overrides.current(200.0).set_unix_s == 100.0
    write(file, {"mode": "native", "reason": "x"})
    assert overrides.current(300.0).set_unix_s == 300.0
