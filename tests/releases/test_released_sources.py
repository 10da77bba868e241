"""The names that the hook touches, in the released sources of SGLang; nothing is imported or installed."""

import functools
import json

import pytest

from sglang_hooks import compat
from sglang_hooks.releases import SUPPORTED
from tests.engine.environment import REMEDY
from tests.releases.matrix import SOURCE, to_json
from tests.releases.source_check import check
from tests.releases.wheels import NoWheelError, Wheel

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def wheel():
    """Gives a release's wheel."""

    @functools.cache
    def of(version):
        try:
            return Wheel(version)
        except NoWheelError as error:
            pytest.fail(f"the wheel of SGLang {version} could not be had; {REMEDY}\n{error}", pytrace=False)

    return of


@pytest.mark.parametrize("version", SUPPORTED)
def test_a_supported_release_has_all_that_governing_touches(version, wheel):
    """Every name with its parameters, in the source that was released."""
    assert check(wheel(version)).governing == ()


@pytest.mark.parametrize("version", SUPPORTED)
def test_the_support_matrix_says_what_the_source_says(version, wheel):
    """Plain decoding too, where some releases differ; `python -m tests.releases` writes it anew."""
    assert json.loads(SOURCE.read_text())[version] == to_json(check(wheel(version)))


def test_the_check_can_fail(wheel):
    """A name that no release has is reported, so an empty answer means something."""
    gone = compat.Target("sglang.srt.managers.scheduler.Scheduler.no_such_method", ("self",))
    assert compat.check((gone,), wheel(SUPPORTED[-1]).source) == [f"{gone.path} is missing"]
