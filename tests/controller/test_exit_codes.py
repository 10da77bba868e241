"""Every command ends with the codes of one table, and says in one line why."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from controller import cli, reference
from controller.cli._exit import MEANING, Commands, Exit

NOWHERE = "http://127.0.0.1:9"
TABLE = [
    ("run --set engine.ulr=x", Exit.USAGE),
    ("run --policy clever", Exit.USAGE),
    ("run --listen 9470", Exit.USAGE),
    ("run --config none.toml", Exit.USAGE),
    ("run --listen 127.0.0.1:{taken}", Exit.USAGE),
    ("run --set engine.ca_file=none.pem --set store.path=:memory: --listen 127.0.0.1:0", Exit.USAGE),
    ("demo --profile h100", Exit.USAGE),
    ("demo --policy clever", Exit.USAGE),
    ("demo --api-port {taken}", Exit.USAGE),
    ("replay --profile h200_llama8b_fa3 --arrivals none.csv", Exit.USAGE),
    ("replay --profile h200_llama8b_fa3 --arrivals {file}", Exit.USAGE),
    ("replay --profile h100 --arrivals {file}", Exit.USAGE),
    ("replay --profile h200_llama8b_fa3 --arrivals {file} --plot none/x.png", Exit.USAGE),
    ("replay --profile h200_llama8b_fa3 --arrivals {file} --plot x.doc", Exit.USAGE),
    ("bench --engine {nowhere} --output out", Exit.FAILED),
    ("bench --concurrency 0", Exit.USAGE),
    ("bench --plain x", Exit.USAGE),
    ("bench --arms sideways --output out", Exit.USAGE),
    ("bench --prompts none --output out", Exit.USAGE),
    ("bench --output {file}", Exit.USAGE),
    ("bench --engine {nowhere} --api-key-file none --output out", Exit.USAGE),
    ("engine-flags --config new.json", Exit.DONE),
    ("engine-flags --depths 1,1,4", Exit.USAGE),
    ("engine-flags --config {file}", Exit.USAGE),
    ("engine-flags --config none/new.json", Exit.USAGE),
    ("preflight --engine {nowhere}", Exit.ATTENTION),
    ("preflight --engine ftp://x", Exit.USAGE),
    ("preflight --config none.toml", Exit.USAGE),
    ("export-hooks folder", Exit.DONE),
    ("export-hooks {file}", Exit.USAGE),
    ("knowledge export out.json --url {nowhere}", Exit.FAILED),
    ("knowledge import none.json", Exit.USAGE),
    ("knowledge import {file}", Exit.USAGE),
    ("status --url {nowhere}", Exit.FAILED),
    ("status --token-file none", Exit.USAGE),
    ("watch --once --url {nowhere}", Exit.FAILED),
    ("watch --url {nowhere}", Exit.FAILED),
    ("decisions --url {nowhere}", Exit.FAILED),
    ("decisions --since soon", Exit.USAGE),
    ("decisions --kind decison", Exit.USAGE),
    ("explain --url {nowhere}", Exit.FAILED),
    ("override auto --url {nowhere}", Exit.FAILED),
    ("override off", Exit.USAGE),
    ("override sideways --reason x", Exit.USAGE),
    ("override off --reason x --ttl soon", Exit.USAGE),
    ("override off --reason x --ttl 0s", Exit.USAGE),
    ("override off --reason x --ttl 99999d", Exit.USAGE),
    ("override off --reason x --ttl 10", Exit.USAGE),
    ("override on --reason x --depth -1", Exit.USAGE),
    ("override on --reason x --depth 65", Exit.USAGE),
    ("override off --reason x --token-file none", Exit.USAGE),
    ("decisions --since 10", Exit.USAGE),
    ("engine-flags --config new.json --algorithm NGRAM", Exit.USAGE),
    ("engine-flags --config new.json --sglang 0.4.0", Exit.USAGE),
]


NAMES = [name for name, _ in reference._commands(get_command(cli.make_app()))]


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    """Runs a command in an empty folder; in it, `{taken}` is a port in use and `{file}` somebody's file."""
    monkeypatch.chdir(tmp_path)
    Path("mine.txt").write_text("nobody but me may change this\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        filled = {"taken": taken.getsockname()[1], "file": "mine.txt", "nowhere": NOWHERE}
        yield lambda text: CliRunner().invoke(cli.make_app(), text.format(**filled).split())


@pytest.mark.parametrize(("command", "code"), TABLE)
def test_a_command_ends_with_the_code_of_the_table(invoke, command, code):
    """By a message, never by a traceback; and somebody's file is as it was."""
    result = invoke(command)
    assert result.exit_code == code, result.output
    assert isinstance(result.exception, SystemExit | None)
    assert Path("mine.txt").read_text() == "nobody but me may change this\n"
    if code in (Exit.FAILED, Exit.USAGE):
        assert "rror" in result.stderr
        assert result.stdout == ""


def test_every_command_is_in_the_table():
    """A new one must say how it ends."""
    tried = {command for command, _ in TABLE}
    left_out = {name for name in NAMES if not any(c.startswith(f"{name} ") for c in tried)}
    assert left_out == set()


@pytest.mark.parametrize("name", NAMES)
def test_every_command_refuses_an_option_that_it_has_not(invoke, name):
    """And explains those that it has."""
    assert invoke(f"{name} --nonsense").exit_code == Exit.USAGE
    assert invoke(f"{name} --help").exit_code == Exit.DONE


def test_ctrl_c_ends_a_command_as_shells_have_it():
    """130, without a traceback."""
    app = typer.Typer(cls=Commands)

    @app.command()
    def stopped():
        raise KeyboardInterrupt

    @app.command()
    def other():
        pass

    assert CliRunner().invoke(app, ["stopped"]).exit_code == 130


def test_the_codes_are_these_and_documented():
    """Scripts depend on them: in the help, and in docs/commands.md."""
    assert {code.name: int(code) for code in Exit} == {
        "DONE": 0,
        "FAILED": 1,
        "USAGE": 2,
        "ATTENTION": 3,
        "INTERRUPTED": 130,
        "TERMINATED": 143,
    }
    page = reference.commands_page()
    said = " ".join(CliRunner().invoke(cli.make_app(), ["--help"]).stdout.split())
    for code, meaning in MEANING.items():
        assert f"| {code:d} | {meaning} |" in page
        assert f"{code:d} {meaning}" in said


@pytest.mark.parametrize(("command", "code"), [("run", 0), ("bench", 143)])
def test_sigterm_ends_the_first_process_of_a_container_that_has_only_begun(command, code):
    """The kernel would drop the signal; a sidecar that has not begun has nothing to hand back."""
    program = (
        "import os, signal; from controller import cli; os.getpid = lambda: 1;"
        "cli.make_app = lambda names: signal.raise_signal(signal.SIGTERM); cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", program, command], timeout=60, check=False)
    assert done.returncode == code


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a full device")
@pytest.mark.parametrize("words", ["engine-flags --config new.json", "preflight --json", "preflight"])
def test_output_that_cannot_be_written_is_one_line_and_1(words, tmp_path):
    """No traceback, neither of the command nor of the interpreter that ends."""
    given = f" --engine {NOWHERE}" if words.startswith("preflight") else ""
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "controller", *f"{words}{given}".split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        )
    assert ended.stderr == "error: the output cannot be written: No space left on device\n"
    assert ended.returncode == Exit.FAILED


def test_ctrl_c_while_the_command_is_being_loaded_ends_with_130_and_no_traceback(tmp_path):
    """The parts of a command take most of its first second to load."""
    (tmp_path / "typer.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    ended = subprocess.run(
        [sys.executable, "-m", "controller", "status"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path.cwd()}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (Exit.INTERRUPTED, "")
