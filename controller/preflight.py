"""Whether a server runs as control needs it.  Pure: facts in, verdicts out, each with what mends it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from controller.control_state import PROTOCOL, ControlState
from controller.errors import EngineError, EngineTimeoutError, EngineUnreachableError
from controller.exposition import LoadSample, ServerInfo
from controller.link import Link, classify
from sglang_hooks.governable import PIPELINE, PREFILL, RUST_FRONT_END, SEVERAL_TOKENIZERS
from sglang_hooks.releases import SUPPORTED, faults_of

KEY_FILE = "SPECGOV_ENGINE__API_KEY_FILE=FILE (engine.api_key_file)"
KEY = f"check --engine and the key: {KEY_FILE}"
NOT_CHECKED = "not checked: the server does not answer"


class Verdict(StrEnum):
    """Outcome of a check."""

    PASS = "pass"  # noqa: S105  no password
    WARN = "warn"
    """Control works, with something less."""
    FAIL = "fail"
    UNKNOWN = "unknown"
    """Could not be checked; counts as failed."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check."""

    name: str
    verdict: Verdict
    found: str
    mend: str = ""
    """The flag or the step that mends it."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What was asked and answered; `None`: no answer, for the reason beside it."""

    info: ServerInfo | None
    info_error: EngineError | None
    control: ControlState | None
    control_error: EngineError | None
    loads: LoadSample | None
    loads_error: EngineError | None
    metrics: LoadSample | None
    metrics_error: EngineError | None


def check(facts: Facts) -> list[Check]:
    """All checks, in the order in which they are worth mending."""
    if _silent(facts):
        rest = ("speculation", "plugin", "loads", "metrics")
        return [*_server(facts), *(Check(name, Verdict.UNKNOWN, NOT_CHECKED) for name in rest)]
    return [*_server(facts), *_speculation(facts.info), *_plugin(facts), *_signals(facts)]


def _silent(facts: Facts) -> bool:
    """Whether nothing answered at all: then no flag of the server is known to be wrong."""
    errors = (facts.info_error, facts.control_error, facts.loads_error, facts.metrics_error)
    return all(isinstance(error, EngineUnreachableError | EngineTimeoutError) for error in errors)


def passed(checks: list[Check]) -> bool:
    """Whether control will work."""
    return all(c.verdict in (Verdict.PASS, Verdict.WARN) for c in checks)


def _server(facts: Facts) -> Iterator[Check]:
    info = facts.info
    if info is None:
        found = str(facts.info_error or "no answer")
        at = "is the server up, and --engine its address?" if _silent(facts) else KEY
        yield Check("server", Verdict.FAIL, found, at)
        return
    yield Check("server", Verdict.PASS, f"SGLang {info.version}, model {info.model}")
    yield _version(info)
    yield from _faults(info, facts.control)
    yield from _shape(info)


def _version(info: ServerInfo) -> Check:
    known = f"{SUPPORTED[0]} to {SUPPORTED[-1]}"
    mend = f"use a release from {known}, or watch the plugin's verdict below"
    if info.version is None:
        return Check("version", Verdict.UNKNOWN, "not stated", mend)
    found = f"{info.version}; known: {known}"
    if info.version in SUPPORTED:
        return Check("version", Verdict.PASS, found)
    return Check("version", Verdict.WARN, found, mend)


def _faults(info: ServerInfo, control: ControlState | None) -> Iterator[Check]:
    """Faults of this release that users would blame on us."""
    depths = control.built_depths if control else ()
    at_deepest = bool(depths) and info.num_steps == max(depths)
    for fault in faults_of(info.version):
        if fault.at_deepest or not at_deepest:
            yield Check("known fault", Verdict.WARN, fault.symptom, fault.way_round)


def _shape(info: ServerInfo) -> Iterator[Check]:
    """Ways to run SGLang that cannot be governed; nothing where the server does not say."""
    tokenizers = info.tokenizer_workers or 1
    if tokenizers > 1:
        found = f"{tokenizers} tokenizer workers: {SEVERAL_TOKENIZERS}"
        yield Check("front end", Verdict.FAIL, found, "leave out --tokenizer-worker-num")
    if info.frontend not in (None, "python"):
        yield Check("front end", Verdict.FAIL, RUST_FRONT_END, "unset SGLANG_RUST_SERVER")
    if (info.pp_size or 1) > 1:
        yield Check("pipeline", Verdict.FAIL, PIPELINE, "leave out --pp-size")
    if info.disaggregation == "prefill":
        yield Check("role", Verdict.FAIL, PREFILL, "point specgov at the decode servers")


def _speculation(info: ServerInfo | None) -> Iterator[Check]:
    if info is None:
        yield Check("speculation", Verdict.UNKNOWN, "not checked: /server_info did not answer")
        return
    off = info.speculative_algorithm is None
    known = info.speculative_algorithm in ("EAGLE", "EAGLE3")
    yield _check(
        "algorithm",
        known,
        "speculation is off" if off else str(info.speculative_algorithm),
        "--speculative-algorithm EAGLE3 --speculative-draft-model-path DRAFT (EAGLE or EAGLE3)",
    )
    if off:
        return
    yield _check("topk", _is(info.topk, 1), f"topk {info.topk}", "--speculative-eagle-topk 1")
    steps, tokens = info.num_steps, info.num_draft_tokens
    matched = None if steps is None or tokens is None else tokens == steps + 1
    wanted = "" if steps is None else f" {steps + 1}"
    yield _check(
        "draft tokens",
        matched,
        f"{steps} steps, {tokens} draft tokens",
        f"--speculative-num-draft-tokens{wanted or ' STEPS+1'}",
    )
    yield _check(
        "overlap",
        None if info.overlap_disabled is None else not info.overlap_disabled,
        "overlap scheduler off" if info.overlap_disabled else "overlap scheduler on",
        "leave out --disable-overlap-schedule",
    )
    yield _check(
        "adaptive",
        info.adaptive,
        "adaptive" if info.adaptive else "no adaptive controller",
        "--speculative-adaptive --speculative-adaptive-config FILE; see specgov engine-flags",
    )
    attention = None if info.dp_attention is None else not info.dp_attention
    yield _check("attention", attention, _attention(info.dp_attention), "leave out --enable-dp-attention")


def _attention(data_parallel: bool | None) -> str:
    return {True: "data-parallel (DP) attention", False: "no DP attention", None: "DP attention or not"}[
        data_parallel
    ]


def _plugin(facts: Facts) -> Iterator[Check]:
    control = facts.control
    state = classify(control, facts.control_error, facts.info, facts.loads_error)
    found = f"{state.link}: {state.detail}"
    if control is None:
        yield Check("plugin", Verdict.FAIL, found, state.remedy)
        return
    spoken = f"plugin {control.plugin_version}, protocol {control.protocol}"
    yield _check(
        "plugin", control.protocol == PROTOCOL, spoken, "install the same specgov release on both sides"
    )
    yield Check(
        "control",
        Verdict.PASS if state.link is Link.READY else Verdict.FAIL,
        found,
        state.remedy if state.link is not Link.NOT_CONTROLLABLE else (control.reason or "see SGLang's log"),
    )
    depths = ", ".join(map(str, control.built_depths)) or "none"
    several = 0 in control.built_depths and len(control.built_depths) > 1
    yield _check(
        "depths",
        several,
        f"built: {depths}",
        "candidate_steps with 0 and others: specgov engine-flags --depths 0,1,2,4",
    )
    plain = control.plain_decode
    yield Check(
        "plain decode",
        Verdict.PASS if plain else Verdict.WARN,
        "depth 0 runs as plain decoding"
        if plain
        else f"no: {control.plain_decode_reason or 'no reason given'}",
        "" if plain else "off works, at SGLang's own cost of depth 0",
    )
    yield from _chain_verify(control)
    yield _ranks(control.ranks_agree)
    yield from _lease(control)


def _chain_verify(control: ControlState) -> Iterator[Check]:
    """No alarm when it is not in force: SGLang's own verify is right, and on most backends as quick."""
    if control.chain_verify is None:
        return
    backend = control.chain_verify_backend
    found = (
        "the target verifies drafts by its decode path"
        if control.chain_verify
        else f"no: {control.chain_verify_reason or 'no reason given'}"
    )
    yield Check("chain verify", Verdict.PASS, f"{found} ({backend})" if backend else found)


def _ranks(agree: bool | None) -> Check:
    verdict = Verdict.FAIL if agree is False else Verdict.PASS
    found = {True: "they agree", False: "they disagree", None: "nothing to compare yet"}[agree]
    return Check("ranks", verdict, found, "restart SGLang; report it" if agree is False else "")


def _lease(control: ControlState) -> Iterator[Check]:
    """Who governs the server now: one sidecar at a time can."""
    if control.lease_live:
        found = f"held by {control.holder}, {control.lease_left_s:.0f} s left"
        yield Check(
            "lease",
            Verdict.WARN,
            found,
            "right if it is this server's sidecar; else stop that one; if it is gone: DELETE URL/speculation",
        )


def _signals(facts: Facts) -> Iterator[Check]:
    key = f"{KEY_FILE}, if the server has an api key"
    yield _signal("loads", facts.loads, facts.loads_error, key)
    yield _signal("metrics", facts.metrics, facts.metrics_error, "--enable-metrics")


def _signal(name: str, sample: LoadSample | None, error: EngineError | None, mend: str) -> Check:
    if sample is None:
        return Check(name, Verdict.FAIL, str(error or "no answer"), mend)
    if sample.problems:
        return Check(
            name, Verdict.WARN, "; ".join(sample.problems[:5]), "this release may have renamed fields"
        )
    return Check(name, Verdict.PASS, f"{len(sample.ranks)} DP rank(s)")


def _check(name: str, holds: bool | None, found: str, mend: str) -> Check:
    if holds is None:
        return Check(name, Verdict.UNKNOWN, f"not stated ({found})", mend)
    return Check(name, Verdict.PASS if holds else Verdict.FAIL, found, "" if holds else mend)


def _is(value: int | None, wanted: int) -> bool | None:
    return None if value is None else value == wanted
