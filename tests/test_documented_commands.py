"""Every command, variable, path and link that the documentation names is one that there is."""

from __future__ import annotations

import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.main import get_command

from controller import cli, settings
from controller.reference import openapi

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "tests").glob("*/README.md")])
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
OURS = ("specgov", "make", "pytest", "python")
SHELL = re.compile(rf" *(?:{'|'.join((*OURS, 'kubectl'))}) ")
OTHERS = {"/v1/loads", "/v1/models", "/v1/completions", "/v1/chat/completions"}
"""Paths of SGLang and of OpenAI's API that pages name too."""
COMMANDS = get_command(cli.make_app())
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def name(page):
    return str(page.relative_to(ROOT))


def shell_commands(text):
    """Words of each command in a piece of shell, which may hold several on a line."""
    for line in text.splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split, lexer.commenters = True, "#"
        words: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set("|&;<>"):
                yield words
                words = []
            else:
                words.append(word)


def commands(page):
    """Our own commands on a page: in blocks, behind `kubectl exec ... --`, and between words."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = [body for language, body in FENCE.findall(text) if language in ("sh", "")]
    lines = [line for block in blocks for line in block.splitlines()]
    lines += re.findall(r"^ {4}(?=\S).*", FENCE.sub("", text), re.MULTILINE)
    for words in (words for line in lines if SHELL.match(line) for words in shell_commands(line)):
        starts = [i for i, word in enumerate(words) if word in OURS and words[i - 1 : i] in ([], ["--"])]
        yield from (words[i:] for i in starts)
    for span in SPAN.findall(FENCE.sub("", text)):
        if span.split()[0] in OURS:
            yield from (words for words in shell_commands(span) if words[:1] and words[0] in OURS)


def check(words):
    """Raise unless there is such a command."""
    program, *arguments = words
    {"specgov": _specgov, "make": _make, "pytest": _pytest, "python": _python}[program](arguments)


def _specgov(arguments):
    if not arguments or arguments[0].startswith("-"):
        return
    command, (word, *rest) = COMMANDS, arguments
    while True:
        command = command.commands[word]
        if not hasattr(command, "commands"):
            break
        word, *rest = rest
    bare = not any(argument.startswith("-") for argument in rest)
    command.make_context(word, list(rest), resilient_parsing=bare)
    for pair in (rest[i + 1] for i, argument in enumerate(rest) if argument == "--set"):
        key, _, value = pair.partition("=")
        settings.load(flags=settings.nested({key: value}), environ={})


def _make(arguments):
    targets = [argument for argument in arguments if "=" not in argument]
    assert set(targets) <= TARGETS, targets


def _pytest(arguments):
    for path in (argument.split("::")[0] for argument in arguments if "/" in argument):
        assert (ROOT / path).exists(), path


def _python(arguments):
    if arguments[:1] == ["-m"]:
        assert find_spec(arguments[1]) is not None, arguments[1]
    elif arguments:
        assert (ROOT / arguments[0]).exists(), arguments[0]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_command_of_a_page_exists_with_its_options(page):
    """Parsed by the command itself, so a renamed option fails here."""
    for words in commands(page):
        try:
            check(words)
        except Exception as error:
            raise AssertionError(f"{shlex.join(words)}: {error!r}") from error


def test_commands_are_found_in_blocks_in_text_and_behind_kubectl():
    """The search can fail: a page with none of them would pass unseen."""
    found = {name(page): [words[:2] for words in commands(page)] for page in PAGES}
    assert ["specgov", "engine-flags"] in found["README.md"]
    assert ["specgov", "bench"] in found["docs/bench.md"]
    assert ["specgov", "replay"] in found["docs/simulator.md"]
    assert ["specgov", "preflight"] in found["docs/kubernetes.md"]
    with pytest.raises(Exception, match="nonsense"):
        check(["specgov", "status", "--nonsense"])


def test_every_variable_of_ours_is_read_somewhere():
    """`SPECGOV_SECTION__KEY` is a setting; the others stand in the code that reads them."""
    code = "".join(
        path.read_text(encoding="utf-8")
        for folder in ("controller", "sglang_hooks", "tests", "deploy")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".sh", ".yaml", ".tpl") and path.name != Path(__file__).name
    )
    for page in PAGES:
        for variable in set(re.findall(r"\bSPECGOV_[A-Z_]*[A-Z]\b", page.read_text(encoding="utf-8"))):
            section, separator, key = variable.removeprefix("SPECGOV_").lower().partition("__")
            if separator and section != "section":
                assert key in settings.Settings.model_fields[section].annotation.model_fields, variable
            else:
                assert (
                    separator or f'"{variable}"' in code or f"{variable}=" in code or f"{variable}\n" in code
                ), f"{name(page)}: {variable}"


def test_every_request_of_ours_is_one_of_the_api():
    """`/v1/...` as the pages write it, without what follows a question mark."""
    paths = set(openapi()["paths"])
    for page in PAGES:
        for path in set(re.findall(r"[`\s](/v1/[a-z/]+)", page.read_text(encoding="utf-8"))):
            assert path in paths | OTHERS, f"{name(page)}: {path}"


def anchors(page):
    """Of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=name)
def test_every_link_of_a_page_leads_somewhere(page):
    """Files of the repository and headings in them; the web is not asked."""
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if link.startswith("http"):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_file_that_a_page_names_is_there(page):
    """`deploy/...`, `tests/...`, `docs/...` between back quotes."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for path in re.findall(
        r"`((?:deploy|tests|docs|controller|policies|sglang_hooks)/[\w./*-]+)(?:::\w+)?`", text
    ):
        assert list(ROOT.glob(path.rstrip("/"))), path
