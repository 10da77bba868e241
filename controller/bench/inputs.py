"""What the options of a benchmark name: arms, prompts, a scenario, a trace; before any server is asked."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console

from controller import settings
from controller.bench.arms import BenchArm, arm_of, parse_arm
from controller.bench.client import Dialect
from controller.bench.courses import Arrivals
from controller.bench.prompts import (
    Coding,
    Encyclopedic,
    PromptSource,
    RandomTokens,
    of_length,
    parse_sharegpt,
)
from controller.bench.request import BenchRequest
from controller.bench.scenario import InvalidScenarioError, Phase, parse_scenario
from controller.errors import BadRequestError
from controller.simulation.arrivals import InvalidArrivalsError, describe_bad_rows, read_arrivals
from policies import registry

_THIS_MACHINE = {"localhost", "127.0.0.1", "::1", "0.0.0.0", "::"}  # noqa: S104 - compared, not bound
MAX_TRACE_S = 86_400.0
"""A day: longer, and its times are rather in another unit."""


class Sources:
    """Prompt sources by name, each read once."""

    def __init__(self, default: str) -> None:
        self._default = default
        self._known: dict[str, PromptSource] = {
            "encyclopedic": Encyclopedic(),
            "coding": Coding(),
            "tokens": RandomTokens(),
        }

    def __call__(self, name: str | None) -> PromptSource:
        """The source of this name, `None`: the default; raises `BadRequestError`."""
        name = name or self._default
        if name not in self._known:
            try:
                self._known[name] = parse_sharegpt(Path(name).read_text(encoding="utf-8"))
            except OSError as problem:
                known = ", ".join(self._known)
                rule = f"must be one of {known}, or a readable ShareGPT file"
                raise BadRequestError(f"--prompts {rule}, got {name!r}: {problem.strerror}") from None
            except ValueError as problem:
                raise BadRequestError(f"--prompts {name}: {problem}") from None
        return self._known[name]


@dataclass(frozen=True, slots=True)
class Inputs:
    """What was read; `phases` and `arrivals` are `None` where the load is another."""

    arms: list[BenchArm]
    source_of: Sources
    phases: tuple[Phase, ...] | None
    arrivals: Arrivals | None


def read_inputs(request: BenchRequest, console: Console) -> Inputs:
    """Read what the options name; raises `BadRequestError`."""
    arms = parse_arms(request.arms)
    _check_names([name for name, _ in request.beside])
    _check_servers(request)
    if any(arm.policy is not None for arm in arms):
        settings.load(request.config, {})
    source_of = Sources(request.prompts)
    source_of(None)
    _check_text(request, [request.prompts])
    phases = arrivals = None
    if request.scenario is not None:
        phases = _phases(request.scenario)
        for phase in phases:
            source_of(phase.prompts)
        _check_text(request, [phase.prompts for phase in phases])
    elif request.arrivals is not None:
        arrivals = _arrivals(request, request.arrivals, console)
    return Inputs(arms, source_of, phases, arrivals)


def _check_text(request: BenchRequest, prompts: Iterable[str | None]) -> None:
    if request.dialect is Dialect.CHAT and "tokens" in prompts:
        raise BadRequestError(
            "--prompts must be texts with --dialect openai-chat, got 'tokens', which are ids"
        )


def parse_arms(wanted: Sequence[str]) -> list[BenchArm]:
    """The arms of their labels; raises `BadRequestError` for one that is unknown, or there twice."""
    try:
        arms = [parse_arm(text) for text in wanted]
        for arm in arms:
            if arm.policy is not None:
                registry.find(arm.policy)
    except ValueError as problem:
        raise BadRequestError(f"--arms: {problem}") from None
    _check_once("--arms must hold each arm once", [_one_label(arm) for arm in arms])
    return arms


def _one_label(arm: BenchArm) -> str:
    """The same for `depth-0` and `off-warm`, which are one arm."""
    return arm.label if arm.fixed is None else arm_of(arm.fixed.depth, arm.fixed.gear).label


def _check_names(names: list[str]) -> None:
    rule = "--plain and --beside must be given names of their own"
    _check_once(rule, ["engine", *names])
    for name in names:
        with suppress(ValueError):
            parse_arm(name)
            raise BadRequestError(f"{rule}, got {name!r}, which is an arm")


def _check_servers(request: BenchRequest) -> None:
    """Raise `BadRequestError` for a server given twice: its other arm's plan would be measured."""
    known = {_place(request.engine): f"--engine {request.engine}"}
    for name, url in request.beside:
        place = _place(url)
        if place in known:
            raise BadRequestError(
                f"--plain and --beside must be servers of their own, got {name}={url}, which is that of "
                f"{known[place]}: leave it out; as-is in --arms measures --engine as it is"
            )
        known[place] = f"{name}={url}"


def _place(url: str) -> tuple[str, str, int | None, str]:
    """The same for two URLs of one server, as far as URLs tell; `url` is a good one."""
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return parts.scheme, "localhost" if host in _THIS_MACHINE else host, port, parts.path.rstrip("/")


def _check_once(rule: str, values: Iterable[str]) -> None:
    """Raise `BadRequestError` for the first value that is there more than once."""
    for value, times in Counter(values).items():
        if times > 1:
            raise BadRequestError(f"{rule}, got {value!r} {times} times")


def _phases(path: Path) -> tuple[Phase, ...]:
    try:
        return parse_scenario(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise BadRequestError(f"--scenario must be a readable file, got {path}: {problem.strerror}") from None
    except InvalidScenarioError as problem:
        raise BadRequestError(f"--scenario {path}: {problem}") from None


def _arrivals(request: BenchRequest, path: Path, console: Console) -> Arrivals:
    try:
        trace = read_arrivals(path).scaled(request.rate_scale)
    except OSError as problem:
        raise BadRequestError(f"--arrivals must be a readable file, got {path}: {problem.strerror}") from None
    except InvalidArrivalsError as problem:
        raise BadRequestError(f"--arrivals: {problem}") from None
    if trace.duration_s > MAX_TRACE_S:
        raise BadRequestError(
            f"--arrivals must last at most {MAX_TRACE_S:g} s (a day) at its --rate-scale, got {path} of "
            f"{trace.duration_s:g} s: raise --rate-scale, cut the trace, or mend the unit of its times"
        )
    if trace.bad_rows:
        console.print(f"{path}: {describe_bad_rows(trace)}", style="yellow", markup=False)
    rng = random.Random(request.seed)  # noqa: S311 - load, not secrets
    as_text = request.prompts != "tokens"
    return [
        (a.arrival_s, of_length(a.prompt_tokens, a.output_tokens, rng, as_text=as_text))
        for a in trace.arrivals
    ]
