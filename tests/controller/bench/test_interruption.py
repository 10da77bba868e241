"""Ctrl-C and SIGTERM in the middle: the engine is handed back, what was measured is kept."""

import json
import os
import signal
import threading
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
from typer.testing import CliRunner

from controller.cli import make_app
from tests.controller.bench.test_command import Handler

QUICK = "--concurrency 1 --rounds 1 --window 0.1 --settle 0 --warm-up 0 --prompts tokens"


class Steered(Handler):
    """Follows every plan at once, one holder at a time; `told` is sent to this process before plan `at`."""

    def do_GET(self):  # noqa: N802 - as http.server has it
        """The state."""
        self._answer(200, self.server.state)

    def do_PUT(self):  # noqa: N802 - as http.server has it
        """A plan: in force when answered."""
        server = self.server
        plan = json.loads(self.rfile.read(int(self.headers["content-length"])))
        server.holders.append(plan["holder"])
        if len(server.holders) == server.at:
            os.kill(os.getpid(), server.told)
        row = plan["schedule"][0]
        rank = {"depth": row["depth"], "gear": row.get("gear", "on"), "batch_size": 1, "cells": []}
        server.state |= {"holder": plan["holder"], "sequence": plan["sequence"], "telemetry": [rank]}
        self._answer(200, server.state)

    def do_DELETE(self):  # noqa: N802 - as http.server has it
        """Handed back, when it is the holder who says so."""
        if parse_qs(urlsplit(self.path).query)["holder"] != [self.server.state["holder"]]:
            self._answer(409, {})
            return
        self.server.state["holder"] = None
        self._answer(200, self.server.state)


@contextmanager
def steered(at=0, told=signal.SIGINT, holder=None):
    """A server that can be steered."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Steered)
    server.at, server.told, server.holders = at, told, []
    server.state = {"controllable": True, "built_depths": [0, 1, 4], "gears": ["warm", "cold"]}
    server.state |= {"holder": holder, "sequence": 0, "telemetry": []}
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def bench(server, output, *options):
    """`specgov bench` of two depths."""
    url = f"http://127.0.0.1:{server.server_port}"
    arms = ["--engine", url, "--arms", "depth-1,depth-4", "--output", str(output)]
    return CliRunner().invoke(make_app(), ["bench", *arms, *QUICK.split(), *options])


def test_a_whole_run_hands_the_engine_back(tmp_path):
    """And says that it is whole."""
    with steered() as server:
        result = bench(server, tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert server.state["holder"] is None
    assert json.loads((tmp_path / "out" / "results.json").read_text())["about"]["interrupted"] is False


@pytest.mark.parametrize(("told", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_hands_the_engine_back_and_keeps_what_was_measured(tmp_path, told, code):
    """It comes with the last plan: the arm before has its window, the file is marked, one line says so."""
    with steered() as server:
        bench(server, tmp_path / "whole")
        plans = len(server.holders)
    with steered(at=plans, told=told) as server:
        result = bench(server, tmp_path / "out")
    assert result.exit_code == code, result.output
    assert server.state["holder"] is None
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [w["label"] for w in found["windows"]] == ["depth-1"]
    assert found["about"]["interrupted"] is True
    assert f"interrupted by {told.name}: 1 window measured" in result.stderr


def test_a_signal_before_anything_was_measured_leaves_no_folder(tmp_path):
    """The engine is handed back all the same."""
    with steered(at=1) as server:
        result = bench(server, tmp_path / "out")
    assert result.exit_code == 130
    assert server.state["holder"] is None
    assert not (tmp_path / "out").exists()
    assert "interrupted by SIGINT: nothing was measured" in result.stderr


def test_a_folder_that_was_there_stays(tmp_path):
    """It is not ours to take away."""
    (tmp_path / "out").mkdir()
    with steered(at=1) as server:
        bench(server, tmp_path / "out")
    assert (tmp_path / "out").is_dir()


def test_a_second_benchmark_is_refused_while_the_lease_of_a_first_lives(tmp_path):
    """No run passes for another, and every one has a name of its own."""
    with steered(holder="specgov-bench/00c0ffee") as server:
        result = bench(server, tmp_path / "out")
    assert result.exit_code == 1
    assert "specgov-bench/00c0ffee holds the lease of this server: stop that benchmark" in " ".join(
        result.stderr.split()
    )
    assert server.holders == []
    assert not (tmp_path / "out").exists()


def test_every_run_has_a_holder_of_its_own(tmp_path):
    """The same for all plans of a run."""
    names = []
    for _ in range(2):
        with steered() as server:
            bench(server, tmp_path / "out")
        names.append(set(server.holders))
    assert [len(each) for each in names] == [1, 1]
    assert names[0] != names[1]
    assert all(name.startswith("specgov-bench/") for each in names for name in each)
