"""`specgov status`, `override`, `decisions`, `explain`: a running sidecar's three-in-the-morning commands."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from controller.cli._common import (
    DEFAULT_URL,
    Json,
    TokenFile,
    Url,
    addressed,
    call,
    duration_s,
    me,
    out,
    show_json,
)
from controller.cli._exit import attend
from controller.errors import BadRequestError, SidecarError
from controller.link import SILENT
from controller.order_rules import MAX_DEPTH, MAX_TTL_S, MIN_TTL_S


class Kind(StrEnum):
    """Kinds of rows in the decision log."""

    DECISION = "decision"
    OVERRIDE = "override"
    EVENT = "event"


ALL = 0.995
"""A share of the tokens above which it is not said."""
FEW = 0.01
"""A share of the tokens below which nothing can be said: after a restart there is hardly anything yet."""
CONFIRM_WITHIN_S, ASK_AGAIN_S = 5.0, 0.25
"""How long, and how often, `override` asks whether the engine follows; a turn a second is the default."""
MODES = ("off", "on", "native", "no_deeper", "no_shallower", "auto", "fleet")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (status, override, decisions, explain):
        app.command()(command)


def status(*, url: Url = DEFAULT_URL, token_file: TokenFile = None, as_json: Json = False) -> None:
    """What happens now, on one screen; exit code 3 when something needs attention."""
    state = call("GET", url, "/v1/status", token_file)
    benefit = call("GET", url, "/v1/benefit", token_file)
    state["brought"] = {key: benefit.get(key) for key in ("since_unix_s", "against")}
    if as_json:
        show_json(state)
    else:
        _print_status(state, lambda text: addressed(text, url, token_file))
    if needs_attention(state):
        attend()


def needs_attention(state: dict[str, Any]) -> bool:
    """Whether a condition holds that nobody asked for, or nothing is known of what holds by now."""
    late = (state.get("turn") or {}).get("late", False)
    return late or any(active["attention"] for active in state["conditions"])


def _print_status(state: dict[str, Any], address: Callable[[str], str]) -> None:
    out.print(Text(state["headline"], "bold"), soft_wrap=True)
    turn = state.get("turn")
    if turn is not None and turn["late"]:
        out.print(Text(late_turn(turn), "yellow"), soft_wrap=True)
    if "load" not in state:
        for line in state["type"]:
            out.print(Text(f"  {address(line)}", "cyan"), soft_wrap=True)
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, text in _status_lines(state):
        table.add_row(Text(name, "dim"), Text(text))
    out.print(table)
    for active in state["conditions"]:
        since, message = _ago(active["since_unix_s"]), address(active["message"])
        out.print(Text(f"! {active['condition']} {since}: {message}", "yellow"), soft_wrap=True)
    for line in state["type"]:
        out.print(Text(f"  {address(line)}", "cyan"), soft_wrap=True)


def late_turn(turn: dict[str, Any]) -> str:
    """That what is shown is of long ago, and why that may be."""
    return f"the last turn is {turn['age_s']:.0f} s old: {turn['detail']}"


def _status_lines(state: dict[str, Any]) -> list[tuple[str, str]]:
    load, depth, lease, engine = state["load"], state["depth"], state["lease"], state["engine"]
    override = state["override"]
    lines = [
        ("mode", f"{state['mode']}, {_ago(state['mode_since_unix_s'])}"),
        ("why", state["why"]),
        ("load", _load(load)),
        ("in force", "not known" if engine["link"] in SILENT else _schedule(depth["in_force"])),
        ("in use", _in_use(depth, away=engine["link"] in SILENT)),
        ("effect", _effect(state["effect"])),
        ("brought", _brought(state["brought"])),
        ("lease", _lease(lease, away=engine["link"] in SILENT)),
        ("engine", f"{engine['link']}: {engine['detail']}"),
    ]
    if override is not None:
        kept = _how_far(override)
        limit = f"; {override['limit']}" if override["limit"] else ""
        suspends = f"; suspends the fleet's {override['suspends']}" if override["suspends"] else ""
        lines.insert(1, ("override", f"{override['detail']}, {_until(override)}{limit}{suspends}{kept}"))
        if override["resumed"] or override["gap_unix_s"]:
            lines.insert(2, ("given", _given(override)))
    if state["after_restart"]:
        lines.insert(2, ("on disk", f"not this: a restart puts in force: {state['after_restart']['detail']}"))
    return lines


def _how_far(order: dict[str, Any]) -> str:
    if order["obstacle"] is not None:
        return "; kept, not in force"
    return "; kept, not confirmed" if order["unconfirmed"] is not None else ""


def _given(order: dict[str, Any]) -> str:
    """When, and since when it is in force: what lies between is said only where it is known."""
    since, gap = order["in_force_since_unix_s"], order["gap_unix_s"]
    now = "not in force" if since is None else f"in force since {_clock(since)}"
    before = (
        f"not from {_clock(gap[0])} to {_clock(gap[1])}" if gap else "whether before that is not known here"
    )
    return f"{_clock(order['set_unix_s'])} {_zone()}; {now}, {before}"


def _until(order: dict[str, Any]) -> str:
    """When an order ends."""
    end = order.get("expires_unix_s")
    until = "" if end is None else f"until {_clock(end)} {_zone()}"
    if order.get("suspends"):
        return f"{until}{', or ' if until else ''}until the fleet's order changes or ends"
    if order.get("scope") == "sidecar":
        return "until the orders can be read, or one is given"
    return until or "until it is ended"


def override(
    mode: Annotated[
        str,
        typer.Argument(
            help="off, on, native, no_deeper, no_shallower; auto (ends this pod's order, else suspends the "
            "fleet's here); or fleet (ends this pod's order and suspension: the fleet's is obeyed)."
        ),
    ],
    *,
    depth: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_DEPTH, help="Draft depth for on; the deepest if left out."),
    ] = None,
    ttl: Annotated[str | None, typer.Option(help="Ends by itself after e.g. 90s, 30m, 8h, 2d.")] = None,
    reason: Annotated[str | None, typer.Option(help="Why; others will read it.")] = None,
    actor: Annotated[str | None, typer.Option(help="Who; your login name if left out.")] = None,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
    as_json: Json = False,
) -> None:
    """Take over, or hand back: off | on | native | no_deeper | no_shallower | auto | fleet.

    Exit code 3 when the order is kept, but the engine cannot be made to follow it now, or was not seen to
    within 5 s.
    """
    if mode not in MODES:
        raise BadRequestError(f"MODE must be one of {', '.join(MODES)}, got {mode!r}")
    reason = (reason or "").strip()
    if mode == "fleet" and not (depth is None and ttl is None):
        raise BadRequestError(
            "fleet goes without --depth and --ttl: the fleet's file says how and until when"
        )
    if mode not in ("auto", "fleet") and not reason:
        raise BadRequestError('--reason "..." is needed: whoever comes after you will ask')
    who = {"reason": reason or ("ended" if mode == "auto" else "back to the fleet's"), "actor": actor or me()}
    if mode == "fleet":
        order = call("DELETE", url, "/v1/override", token_file, params=who)
    else:
        ttl_s = None if ttl is None else _ttl_s(ttl)
        body = {"mode": mode, "depth": depth, "ttl_s": ttl_s, **who}
        order = call("PUT", url, "/v1/override", token_file, json=body)
    order = _confirmed(order, lambda: call("GET", url, "/v1/override", token_file))
    if as_json:
        show_json(order)
    else:
        for line in _order_lines(order, mode):
            out.print(addressed(line, url, token_file), markup=False, soft_wrap=True)
    if order["obstacle"] is not None or order.get("unconfirmed") is not None:
        attend()


def _confirmed(order: dict[str, Any], look: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """`order` as it is once the engine is seen to follow it, or cannot, or `CONFIRM_WITHIN_S` is over.

    That it was taken is not that it is in force.
    """
    ends_s = time.monotonic() + CONFIRM_WITHIN_S
    while order.get("unconfirmed") and order["obstacle"] is None and time.monotonic() < ends_s:
        time.sleep(ASK_AGAIN_S)
        try:
            now = look()
        except SidecarError as error:
            return order | {"unconfirmed": f"{order['unconfirmed']}; then: {error}"}
        if any(now.get(name) != order.get(name) for name in ("mode", "set_unix_s")):
            detail = now.get("detail", "no order: the policy decides")
            return order | {"unconfirmed": f"by now something else stands: {detail}"}
        order = order | now
    return order


def _ttl_s(text: str) -> float:
    """Seconds of `--ttl`, within the rule of the API."""
    ttl_s = duration_s("--ttl", text)
    if not MIN_TTL_S <= ttl_s <= MAX_TTL_S:
        rule = f"--ttl must be at least {MIN_TTL_S:.0f}s and at most {MAX_TTL_S / 86_400:.0f}d"
        raise BadRequestError(f"{rule}, got {text!r}")
    return ttl_s


def _order_lines(order: dict[str, Any], asked: str) -> Iterator[str]:
    replaced, pin_ended, suspends = order.get("replaced"), order.get("pin_ended"), order.get("suspends")
    none_left = order["mode"] == "auto" and not suspends
    if none_left and replaced is None and not pin_ended:
        nothing = (
            "the fleet has no order: the policy decides" if asked == "fleet" else "there was no order to end"
        )
        yield f"{asked}: {nothing}"
        return
    first, *more = _in_force(order)
    doubt = order["obstacle"] is not None or order.get("unconfirmed") is not None
    yield f"kept: {first}" if doubt else first
    yield from more
    if pin_ended:
        yield "ended: the pin to off after the engine's crash loop; restarts are counted from nothing"
    ended = asked in ("auto", "fleet") and not suspends
    if replaced is not None and not (suspends and replaced["scope"] == "fleet"):
        never = "" if replaced.get("was_in_force", True) else ", which was never seen in force"
        yield f"{'ended' if ended else 'replaced'}: {replaced['detail']}{never}"
    yield from _not_in_force(order)
    if order.get("after_restart"):
        yield from _not_on_disk(order, asked)
    elif not order["durable"]:
        yield "not on disk yet"


def _not_in_force(order: dict[str, Any]) -> Iterator[str]:
    if order["obstacle"] is not None:
        yield f"kept, but not in force: {order['obstacle']}"
        if order.get("remedy"):
            yield f"to mend it: {order['remedy']}"
        yield "it comes into force by itself once that is mended; see specgov status"
    elif order.get("unconfirmed") is not None:
        yield f"kept, not confirmed: {order['unconfirmed']}"
        yield "whether it is in force by now: specgov status"


def _not_on_disk(order: dict[str, Any], asked: str) -> Iterator[str]:
    """What comes back, and what keeps it away: a disk that can be written, or the same order again."""
    yield f"not on disk: if the sidecar restarts now, in force is: {order['after_restart']['detail']}"
    depth = "" if order.get("depth") is None else f" --depth {order['depth']}"
    again = f"specgov override {asked}{depth} --reason ..."
    yield f"a disk that cannot be written is named by specgov status; once it has restarted: {again}"


def _in_force(order: dict[str, Any]) -> Iterator[str]:
    if order.get("suspends"):
        yield f"auto, on this pod alone: the fleet's {order['suspends']} is suspended here {_until(order)}"
        yield "to follow the fleet's order again: specgov override fleet"
    elif order.get("scope") == "fleet":
        yield f"{order['detail']}, {_until(order)}"
        yield "to suspend it on this pod alone: specgov override auto"
    elif order["mode"] == "auto":
        yield "auto: the policy decides"
    else:
        depth = "" if order.get("depth") is None else f" at depth {order['depth']}"
        until = _until(order) + ("" if order.get("expires_unix_s") else ": specgov override auto")
        yield f"{order['mode']}{depth}, {until}"
    if order.get("limit"):
        yield order["limit"]


def decisions(
    *,
    limit: Annotated[int, typer.Option(min=1, max=500, help="Rows, newest first.")] = 20,
    before: Annotated[int | None, typer.Option(help="Rows older than this id.")] = None,
    kind: Annotated[Kind | None, typer.Option(help="Only rows of this kind.")] = None,
    reason: Annotated[str | None, typer.Option(help="Only this reason.")] = None,
    since: Annotated[str | None, typer.Option(help="Not older than e.g. 30m, 12h, 2d.")] = None,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
    as_json: Json = False,
) -> None:
    """What was decided, by whom and why."""
    since_unix_s = time.time() - duration_s("--since", since) if since is not None else None
    given = {
        "limit": limit,
        "before": before,
        "kind": kind and str(kind),
        "reason": reason,
        "since_unix_s": since_unix_s,
    }
    query = {key: value for key, value in given.items() if value is not None}
    page = call("GET", url, "/v1/decisions", token_file, params=query)
    if as_json:
        show_json(page)
        return
    if not page["decisions"]:
        out.print("no row of the decision log is like that")
        return
    table = Table("id", f"when ({_zone()})", "kind", "reason", "detail", box=None, pad_edge=False)
    for row in page["decisions"]:
        detail = Text(str(row["body"].get("detail", "")))
        table.add_row(str(row["id"]), _clock(row["at_unix_s"]), row["kind"], row["reason"], detail)
    out.print(table)
    if page["next_before"] is not None:
        out.print(f"older rows: --before {page['next_before']}, or a larger --limit", style="dim")


def explain(*, url: Url = DEFAULT_URL, token_file: TokenFile = None, as_json: Json = False) -> None:
    """Why this depth now, with the numbers, and what would change it."""
    said = call("GET", url, "/v1/explain", token_file)
    if as_json:
        show_json(said)
        return
    for line in said["because"]:
        out.print(Text(addressed(line, url, token_file)), soft_wrap=True)
    for title, lines in (("the numbers", said["numbers"]), ("what would change it", said["would_change"])):
        if lines:
            out.print(Text(f"{title}:", "bold"))
        for line in lines:
            out.print(Text(f"  {addressed(line, url, token_file)}"), soft_wrap=True)


def _load(load: dict[str, Any]) -> str:
    if load["running_reqs"] is None and load["queue_reqs"] is None:
        return "not known"
    age, telemetry = (_age(load[key]) for key in ("age_s", "telemetry_age_s"))
    running, waiting = ("not known" if n is None else n for n in (load["running_reqs"], load["queue_reqs"]))
    return f"running: {running}, waiting: {waiting}, {age}; telemetry: {telemetry}"


def _age(age_s: float | None) -> str:
    return "age not known" if age_s is None else f"{age_s:.1f} s old"


def _effect(effect: dict[str, Any]) -> str:
    """`applied` speaks for itself; what keeps the others from it is said."""
    why = "" if effect["state"] == "applied" else f": {effect['detail']}"
    return f"{effect['state']}, for {effect['for_s']:.0f} s{why}"


def _brought(benefit: dict[str, Any]) -> str:
    """Tokens gained since the sidecar started, with the standard error; what never ran is not known."""
    names, against, since = ("always_on", "always_off"), benefit["against"] or {}, benefit["since_unix_s"]
    gained = ", ".join(_gained(name.replace("_", " "), against.get(name, {})) for name in names)
    return gained if since is None else f"{gained}; counted {_ago(since)}"


def _gained(name: str, balance: dict[str, Any]) -> str:
    """Known only of the tokens at whose batch size the other choice ran too; `share` of all."""
    gain, error, share = (balance.get(key) for key in ("gain", "se_gain", "share"))
    if gain is None or error is None or share is None:
        return f"not known against {name}"
    if share < FEW:
        return f"not known yet against {name}"
    of = "" if share > ALL else f" where that ran too, {100 * share:.0f} % of the tokens"
    percent = round(100 * gain, 1) or 0.0  # -0.0 is no loss
    return f"{percent:+.1f} % (± {100 * error:.1f}) against {name}{of}"


def _lease(lease: dict[str, Any], *, away: bool) -> str:
    if away:
        return "not known"
    left_s = lease["left_s"]
    return str(lease["state"]) if left_s is None else f"{lease['state']}, {left_s:.1f} s left"


def _arm(arm: dict[str, Any] | None) -> str:
    if arm is None:
        return "not known"
    return f"depth {arm['depth']}" + ("" if arm["depth"] else f" ({arm['gear']})")


def _in_use(depth: dict[str, Any], *, away: bool) -> str:
    """The arm of the latest decode step that was seen, which is of before once the engine is silent."""
    arm = _arm(depth["in_use"])
    if away:
        return "not known" if depth["in_use"] is None else f"not known; when it last answered: {arm}"
    if depth["decoded"] is False:
        return "no decode step since the engine started"
    if depth["in_use_before"] and depth["in_use"] is not None:
        return f"{arm} at the latest step that was seen; none since what is wanted now"
    return arm + (", a short probe" if depth["probing"] else "")


def _schedule(rows: list[dict[str, Any]] | None) -> str:
    if not rows:
        return "SGLang's own choice"
    if len(rows) == 1:
        return f"{_arm(rows[0])} at every batch size"
    bands = []
    for row, after in itertools.zip_longest(rows, rows[1:]):
        first, last = row["min_batch_size"], after and after["min_batch_size"] - 1
        sizes = f"from {first} on" if last is None else str(first) if first == last else f"{first} to {last}"
        bands.append(f"{sizes}: {_arm(row)}")
    return "batch size " + ", ".join(bands)


def _ago(unix_s: float) -> str:
    seconds = max(0, int(time.time() - unix_s))
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"for {seconds // size} {unit}"
    return f"for {seconds} s"


def _zone() -> str:
    """Of the times that are shown: the reader's own, which need not be the pod's."""
    return datetime.now(UTC).astimezone().tzname() or "local time"


def _clock(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
