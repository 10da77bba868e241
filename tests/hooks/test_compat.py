"""The check of SGLang's names and signatures, on sources written here."""

import pytest

from sglang_hooks import compat
from sglang_hooks.compat import Target

SOURCES = {
    "host.engine": """
class Result:
    width: int = 0
    KIND = 1

class Engine:
    def __init__(self, args):
        self.params = args

    @staged("process")
    def process(self, batch, result, *, fast=False):
        ...

async def serve(args, manager=None):
    ...
"""
}


def check(*targets):
    return compat.check(targets, SOURCES.get)


@pytest.mark.parametrize(
    "target",
    [
        Target("host.engine.Engine.process", ("self", "batch", "result")),
        Target("host.engine.Engine.process", ("self",)),
        Target("host.engine.serve", ("args", "manager")),
        Target("host.engine.Engine", attributes=("params", "process")),
        Target("host.engine.Result", attributes=("width", "KIND")),
    ],
)
def test_what_is_there_as_expected_is_no_mismatch(target):
    """Functions by their leading parameters, classes by what they define or set on themselves."""
    assert check(target) == []


@pytest.mark.parametrize(
    ("target", "mismatch"),
    [
        (Target("host.engine.Engine.run", ("self",)), "host.engine.Engine.run is missing"),
        (Target("host.engine.Worker.run", ("self",)), "host.engine.Worker.run is missing"),
        (Target("host.gone.Engine"), "host.gone.Engine is missing"),
        (Target("host.engine.Result", attributes=("width", "depth")), "host.engine.Result has no depth"),
        (
            Target("host.engine.Engine.process", ("self", "result")),
            "host.engine.Engine.process takes (self, batch, result), expected (self, result, ...)",
        ),
        (
            Target("host.engine.serve", ("args", "manager", "port")),
            "host.engine.serve takes (args, manager), expected (args, manager, port, ...)",
        ),
    ],
)
def test_a_mismatch_is_named(target, mismatch):
    """The log line says which name and what it looks like now."""
    assert check(target) == [mismatch]


def test_releases_that_were_not_proven_are_refused_unless_the_operator_says_otherwise(monkeypatch):
    """The message names the way round."""
    assert compat.version_mismatch("0.5.17") is None
    assert "SPECGOV_ALLOW_UNTESTED=1" in compat.version_mismatch("9.9.9")
    assert "SPECGOV_ALLOW_UNTESTED=1" in compat.version_mismatch(None)
    monkeypatch.setenv("SPECGOV_ALLOW_UNTESTED", "1")
    assert compat.version_mismatch("9.9.9") is None


def test_plain_decoding_is_left_out_where_it_is_not_proven(monkeypatch):
    """Governing goes on; depth 0 is SGLang's own, and the reason names the way round."""
    assert compat.version_mismatch("0.5.16") is None
    assert "not proven on SGLang 0.5.16" in compat.plain_decode_mismatch("0.5.16")
    assert compat.plain_decode_mismatch("0.5.23") is None
    monkeypatch.setenv("SPECGOV_ALLOW_UNTESTED", "1")
    assert compat.plain_decode_mismatch("0.5.16") is None


def test_source_is_found_without_importing_it():
    """A module of the standard library and one that does not exist."""
    assert "def dumps" in compat.installed_source("json")
    assert compat.installed_source("json.nothing") is None
    assert compat.installed_source("no_such_package.module") is None
