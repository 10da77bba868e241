"""Ctrl-C and SIGTERM in the middle: the engine is handed back, what was measured is kept."""

import json
import os
import re
import signal
import socket
import threading
import time
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from typer.testing import CliRunner

from controller.bench import govern
from controller.bench.arms import parse_arm
from controller.bench.client import Client
from controller.bench.engine import EngineControl, holder_of
from controller.bench.target import ServerUnderTest
from controller.cli import make_app
from tests.controller.bench.test_command import Handler

QUICK = "--concurrency 1 --rounds 1 --window 0.1 --settle 0 --warm-up 0 --prompts tokens"


class Steered(Handler):
    """Follows every plan at once, one holder at a time; `told` is sent to this process before plan `at`.

    With no signal to send, plan `at` finds that another has taken the lease.
    """

    def do_GET(self):  # noqa: N802 - as http.server has it
        """The state."""
        self._answer(200, self.server.state)

    def do_PUT(self):  # noqa: N802 - as http.server has it
        """A plan: in force when answered."""
        server = self.server
        plan = json.loads(self.rfile.read(int(self.headers["content-length"])))
        server.holders.append(plan["holder"])
        if len(server.holders) == server.at and server.told is None:
            server.state["holder"] = "specgov/pod-7"
            self._answer(409, {})
            return
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
def steered(at=0, told=signal.SIGINT, holder=None, handler=Steered):
    """A server that can be steered."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
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
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert (found["complete"], found["ended_by"]) == (True, None)


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
    assert (found["complete"], found["ended_by"]) == (False, told.name)
    kept = f"1 window measured, kept in {tmp_path / 'out' / 'results.json'}"
    then = "repeat the command with another --output, or with --overwrite to replace them"
    assert f"interrupted by {told.name}: {kept}; to measure them all, {then}\n" in result.stderr


def test_the_results_of_another_run_are_refused_before_the_server_is_asked_anything(tmp_path):
    """Hours of measuring must not be lost to a repeated command line; what is there stays as it is."""
    out = tmp_path / "out"
    with steered() as server:
        bench(server, out)
        before, plans = (out / "results.json").read_bytes(), len(server.holders)
        result = bench(server, out)
        assert len(server.holders) == plans
    assert result.exit_code == 2
    assert (out / "results.json").read_bytes() == before
    rule = "--output must be a folder without the results of another run"
    said = f"{rule}, got {out} with results.json, "
    assert said in result.stderr
    assert "give another --output, or --overwrite to replace them" in result.stderr


@pytest.mark.parametrize("name", ["results.json", "profile.json", "throughput.png", "depth.png"])
def test_each_file_of_a_run_alone_is_enough_to_be_refused(tmp_path, name):
    """Somebody may have moved the others."""
    (tmp_path / name).write_text("kept")
    with steered() as server:
        result = bench(server, tmp_path)
        assert server.holders == []
    assert result.exit_code == 2
    assert (tmp_path / name).read_text() == "kept"


def test_overwrite_replaces_all_files_of_the_other_run_and_no_other(tmp_path):
    """A profile or plot that this run did not make would pass for its own; notes beside them are not ours."""
    for name in ("results.json", "profile.json", "throughput.png", "depth.png", "notes.txt", "engine.x.db"):
        (tmp_path / name).write_text("old")
    with steered() as server:
        bench(server, tmp_path / "whole")
        plans = len(server.holders)
    with steered(at=plans) as server:
        result = bench(server, tmp_path, "--overwrite")
    assert result.exit_code == 130, result.output
    left = {path.name for path in tmp_path.iterdir() if path.is_file()}
    assert left == {"results.json", "notes.txt", "engine.x.db"}
    assert len(json.loads((tmp_path / "results.json").read_text())["windows"]) == 1


def test_overwrite_loses_nothing_when_nothing_is_measured(tmp_path):
    """The old results stay until there are new ones."""
    (tmp_path / "results.json").write_text("old")
    with steered(at=1) as server:
        result = bench(server, tmp_path, "--overwrite")
    assert result.exit_code == 130
    assert (tmp_path / "results.json").read_text() == "old"


class Mortal(Steered):
    """Dies with a plan or after so many requests: closes every connection without an answer from then on."""

    def handle_one_request(self):
        """Nothing more once it is dead."""
        if self.server.dead:
            self.close_connection = True
        else:
            super().handle_one_request()

    def do_GET(self):  # noqa: N802 - as http.server has it
        """The state; none of a plain server."""
        if self.server.plain:
            self._answer(404, {})
        else:
            super().do_GET()

    def do_PUT(self):  # noqa: N802 - as http.server has it
        """A plan; number `dies_at` kills."""
        super().do_PUT()
        self.server.dead = len(self.server.holders) == self.server.dies_at

    def do_POST(self):  # noqa: N802 - as http.server has it
        """A request; number `dies_after` kills."""
        super().do_POST()
        self.server.asked += 1
        self.server.dead = self.server.asked == self.server.dies_after or self.server.dead


@contextmanager
def mortal(*, dies_at=0, dies_after=0, plain=False):
    """A server that dies; `plain`: without /speculation."""
    with steered(handler=Mortal) as server:
        server.dies_at, server.dies_after, server.plain = dies_at, dies_after, plain
        server.dead, server.asked = False, 0
        yield server


def test_a_server_that_dies_in_the_middle_costs_no_window_that_was_measured(tmp_path):
    """It dies with the last plan: the arm before has its window; marked, code 1, one sentence says all."""
    with mortal() as server:
        bench(server, tmp_path / "whole")
        plans = len(server.holders)
    with mortal(dies_at=plans) as server:
        result = bench(server, tmp_path / "out", "--json")
        url = f"http://127.0.0.1:{server.server_port}"
    assert result.exit_code == 1, result.output
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [w["label"] for w in found["windows"]] == ["depth-1"]
    assert found["complete"] is False
    assert found["ended_by"].startswith(f"the server at {url} no longer answers (")
    assert json.loads(result.stdout) == found
    kept = f"1 window measured, kept in {tmp_path / 'out' / 'results.json'}"
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith(f"error: the server at {url} no longer answers (")
    then = "repeat the command with another --output, or with --overwrite to replace them"
    assert last.endswith(f": {kept}; once that is mended, {then}")


def test_a_server_that_dies_while_it_is_measured_as_it_is_gets_no_window(tmp_path):
    """Without /speculation nothing else would tell: half a window of tokens would pass for a slow server."""
    with mortal(plain=True, dies_after=160) as server:
        result = bench(server, tmp_path / "out", "--arms", "as-is", "--rounds", "200")
    assert result.exit_code == 1, result.output
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert found["complete"] is False
    assert 1 <= len(found["windows"]) < 200
    assert all(w["stats"]["errors"] == 0 for w in found["windows"])


def test_a_server_that_dies_before_the_first_window_leaves_no_folder(tmp_path):
    """There is nothing to keep."""
    with mortal(dies_at=2) as server:
        result = bench(server, tmp_path / "out")
    assert result.exit_code == 1
    assert not (tmp_path / "out").exists()


def test_a_lease_that_another_takes_in_the_middle_costs_no_window_either(tmp_path):
    """The sentence names the holder."""
    with steered() as server:
        bench(server, tmp_path / "whole")
        plans = len(server.holders)
    with steered(at=plans, told=None) as server:
        result = bench(server, tmp_path / "out")
    assert result.exit_code == 1, result.output
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert len(found["windows"]) == 1
    assert found["ended_by"].startswith("specgov/pod-7 holds the lease of this server: stop that sidecar")


def test_a_signal_before_anything_was_measured_leaves_no_folder(tmp_path):
    """The engine is handed back all the same."""
    with steered(at=1) as server:
        result = bench(server, tmp_path / "out")
    assert result.exit_code == 130
    assert server.state["holder"] is None
    assert not (tmp_path / "out").exists()
    assert "interrupted by SIGINT: nothing was measured\n" in result.stderr


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
    for folder in ("one", "other"):
        with steered() as server:
            bench(server, tmp_path / folder)
        names.append(set(server.holders))
    assert [len(each) for each in names] == [1, 1]
    assert names[0] != names[1]
    start = f"specgov-bench/{re.sub(r'[^A-Za-z0-9.-]', '-', socket.gethostname())[:64]}-{os.getpid()}-"
    assert all(name.startswith(start) for each in names for name in each)


def test_a_holder_tells_host_and_process_within_what_the_protocol_allows():
    """A host of 200 characters is cut to 64; what could break a line or a URL becomes a dash."""
    assert holder_of("00c0ffee", "gpu 7/é", 41) == "specgov-bench/gpu-7---41-00c0ffee"
    assert len(holder_of("00c0ffee", "h" * 200, 4_194_304)) == 95


class Seen(Exception):  # noqa: N818  no error, it only ends the test
    """The holder of a sidecar that is not made."""


async def test_the_sidecar_of_a_policy_arm_can_be_traced_to_its_benchmark(monkeypatch, tmp_path):
    """Its name is not that of a sidecar of this host, which nobody would look for here."""

    def seen(settings):
        raise Seen(settings.lease.holder)

    monkeypatch.setattr(govern, "assemble", seen)
    async with httpx.AsyncClient(base_url="http://127.0.0.1:19901") as http:
        control = EngineControl(http, time.monotonic, holder_of("00c0ffee", "gpu7", 41))
        server = ServerUnderTest("main", Client(http, time.monotonic), control)
        with pytest.raises(Seen, match=r"^specgov-bench/gpu7-41-00c0ffee/policy$"):
            async with govern.Governor(tmp_path)(server, parse_arm("policy:fixed")):
                pass


class Away(Handler):
    """Keeps no connection open, so that every request asks whether it is there."""

    protocol_version = "HTTP/1.0"


@pytest.mark.slow
def test_a_server_that_was_away_and_is_back_ends_with_1_and_keeps_the_rest(tmp_path):
    """Its port is closed in the middle of a window; the run goes on to its end, and says so."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Away)
    port, began_s = server.server_port, time.monotonic()
    servers = [server]
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def come_back():
        time.sleep(0.8)
        servers[0].shutdown()
        servers[0].server_close()
        time.sleep(0.3)
        servers.append(ThreadingHTTPServer(("127.0.0.1", port), Away))
        servers[1].serve_forever()

    threading.Thread(target=come_back, daemon=True).start()
    where = ["--engine", f"http://127.0.0.1:{port}", "--output", str(tmp_path / "out"), "--json"]
    load = "--concurrency 2 --rounds 3 --window 1.5 --settle 0 --warm-up 0 --prompts tokens"
    result = CliRunner().invoke(make_app(), ["bench", *where, *load.split()])
    servers[1].shutdown()
    servers[1].server_close()
    assert time.monotonic() - began_s > 4.5
    assert result.exit_code == 1, result.output
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [w["away"] is None for w in found["windows"]] == [False, True, True]
    assert (found["complete"], found["ended_by"]) == (False, None)
    assert json.loads(result.stdout) == found
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("error: the server was away in 1 of 3 windows (the first: engine, ")
