"""The control loop: observe, propose, guard, apply, record.

`tick` is one turn and returns all that came of it; `run` only waits and calls it.  The loop's clock is
monotonic; wall time is taken only for what people read and for when an override ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Callable
from dataclasses import dataclass

from controller.conditions import MEANING, ActiveCondition, Condition, ConditionBoard, judge
from controller.control_state import ControlState
from controller.crash_pin import CrashPin
from controller.effect import NOT_ACKNOWLEDGED, EffectState, EffectTracker
from controller.errors import EngineError, EngineTimeoutError
from controller.exposition import ServerInfo
from controller.link import PREFLIGHT, Link, LinkState, classify, speaks_otherwise
from controller.observer import Observer
from controller.order_force import Force, ForceTracker
from controller.overrides import Override, Overrides, in_words
from controller.recording import RecordQueue
from controller.scraper import Scrape, Scraper
from controller.steering import Lease, Steered, Steering
from policies.base import Policy
from policies.guards import pin_left_s
from policies.types import Action, Decision, Observation, Reason, Schedule

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TickResult:
    """All that one turn saw, decided and brought about."""

    now_s: float
    now_unix_s: float
    decided_s: float
    """When the policy, and the shadow, had decided."""
    decided_unix_s: float
    """When the orders were looked at; an engine that is slow to answer delays that after `now_unix_s`."""
    done_unix_s: float
    """When the engine had been asked for what is wanted, and had answered or not."""
    duration_s: float
    scrape: Scrape
    link: LinkState
    observation: Observation
    decision: Decision
    shadow: Decision | None
    """What the shadow policy would do."""
    mode_since_unix_s: float
    """Since when this process has had it so without a break: an order may be older, see `Override`."""
    override: Override | None
    fleet_override: Override | None
    """The fleet's order, also where one on this pod is in force instead."""
    override_ended: Override | None
    """An override that ended by itself in this turn."""
    ended_in_force: bool
    """Whether that was ever seen in force."""
    override_limited: Override | None
    """An override that found its limit in this turn: none was in force when it was given."""
    steered: Steered
    unmet: str | None
    """Why the engine is not seen to follow what was decided; `None`: it is, or it is not asked to."""
    force: Force
    """Of the order, or of there being none."""
    effect: EffectState
    conditions: tuple[ActiveCondition, ...]
    control: ControlState | None
    """The control side's last answer, from this turn or an earlier one."""
    info: ServerInfo | None
    preflight: str
    """What to type to have this engine checked."""

    @property
    def silent(self) -> str | None:
        """That the engine, not given up yet, left this turn without an answer; `None`: it did not."""
        if self.link.link is not Link.READY or self.scrape.sample.control is not None:
            return None
        return slow_or_hangs(self.scrape)

    @property
    def link_remedy(self) -> str:
        """What mends the link; empty when nothing needs mending."""
        return self.link.remedy.replace(PREFLIGHT, self.preflight)

    @property
    def resumed(self) -> bool:
        """Whether the order was given before it came into force here: it outlived a restart, or another."""
        return self.override is not None and self.override.set_unix_s < self.mode_since_unix_s

    @property
    def remedy(self) -> str | None:
        """What removes that which keeps an order from coming into force; `None`: nothing is known to."""
        if self.link_remedy:
            return self.link_remedy
        held = (each.remedy for each in self.conditions if each.condition is Condition.FOREIGN_LEASE)
        return next(held, None)

    @property
    def in_force(self) -> Schedule | None:
        """The table that the engine follows after this turn; `None`: its own choice, or not known."""
        if self.steered.acknowledged and self.steered.wanted is not None:
            return self.steered.wanted.schedule
        return self.observation.in_force if self.steered.lease is not Lease.NONE else None


@dataclass(frozen=True, slots=True)
class LoopParams:
    """See `LoopSettings`."""

    period_s: float
    dry_run: bool
    patience_s: float
    """An engine that answers late is not called unreachable before this long without an answer."""
    preflight: str
    """See `TickResult`."""
    shut_down_within_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Farewell:
    """How the loop left the engine."""

    handed_back: bool | None
    """`None`: there was nothing to hand back, or it is not known."""
    detail: str


_HANDED_BACK = Farewell(True, "the engine was handed back, it is on its fallback")
_NOTHING_HELD = Farewell(None, "no lease was held, so there was nothing to hand back")


def slow_or_hangs(scrape: Scrape) -> str:
    """Why a turn went without the engine's answer."""
    error = scrape.errors.get("speculation")
    return f"the engine is slow or hangs: {error or 'not asked'}"


def out_of_reach(link: LinkState, steered: Steered) -> str | None:
    """Why nothing that is wanted can be put in force; `None`: nothing is in the way."""
    if link.link is not Link.READY:
        return link.detail
    return steered.held_elsewhere


class ControlLoop:
    """One engine, one policy."""

    def __init__(
        self,
        params: LoopParams,
        *,
        scraper: Scraper,
        observer: Observer,
        policy: Policy,
        shadow: Policy | None,
        overrides: Overrides,
        crash_pin: CrashPin,
        steering: Steering,
        effects: EffectTracker,
        conditions: ConditionBoard,
        records: RecordQueue[TickResult],
        store_problem: Callable[[], str | None],
        token_problem: Callable[[], str | None],
        release: Callable[[str], str],
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self._params = params
        self._scraper = scraper
        self._observer = observer
        self._policy = policy
        self._shadow = shadow
        self._overrides = overrides
        self._crash_pin = crash_pin
        self._steering = steering
        self._effects = effects
        self._conditions = conditions
        self._records = records
        self._store_problem = store_problem
        self._token_problem = token_problem
        self._release = release
        self._force = ForceTracker()
        self._clock = clock
        self._wall_clock = wall_clock
        self._control: ControlState | None = None
        self._info: ServerInfo | None = None
        self._link = LinkState(Link.UNREACHABLE, "not asked yet")
        self._answered_s = float("-inf")
        self._epoch = 0
        self._order: tuple[object, ...] | None = None
        self._mode_since_unix_s = wall_clock()
        self._wake = asyncio.Event()
        self.last: TickResult | None = None
        """The latest turn."""
        self.failed_ticks = 0
        self.farewell = Farewell(None, "the loop did not end in time: a lease that was held ends by itself")
        """How the loop left the engine, once it has ended."""

    def out_of_reach(self) -> str | None:
        """Why an order cannot be in force now, as of the latest turn; `None`: nothing is in the way."""
        return out_of_reach(self._link, self._steering.now)

    def ever_in_force(self, order: Override) -> bool:
        """Whether `order` was seen in force by this process."""
        return self._force.ever(order.given)

    async def tick(self, now_s: float) -> TickResult:
        """One turn at `now_s` of the loop's clock."""
        now_unix_s = self._wall_clock()
        scrape = await self._scraper.scrape(now_s, restarted=self._observer.epoch != self._epoch)
        self._epoch = self._observer.epoch
        self._note(scrape)
        decided_unix_s = self._wall_clock()
        ended = self._overrides.end_if_over(decided_unix_s)
        seen = self._observer.observe(scrape.sample, max(now_s, scrape.sample.at_s))
        limited = self._overrides.limit_to(seen.in_force)
        override = self._overrides.current(decided_unix_s)
        observation = dataclasses.replace(
            seen,
            directive=override.directive if override else None,
            auto_orders=self._crash_pin.auto_orders,
            pin_left_s=self._crash_pin.left_before_s(decided_unix_s),
        )
        decision = self._policy.decide(observation)
        self._crash_pin.note(pin_left_s(self._policy), decided_unix_s, observation.auto_orders)
        shadow = self._shadow.decide(observation) if self._shadow else None
        decided_s = self._clock()
        ready = self._link.link is Link.READY
        fresh = scrape.sample.control if ready else None
        steered = await self._steering.apply(decision, fresh, self._clock(), late=ready and fresh is None)
        effect = self._effects.update(
            self._clock(),
            wanted=steered.wanted,
            acknowledged=steered.acknowledged,
            obstacle=self._obstacle(decision, steered),
            control=fresh,
        )
        unmet = self._unmet(decision, steered, scrape)
        done_unix_s = self._wall_clock()
        result = TickResult(
            now_s=now_s,
            now_unix_s=now_unix_s,
            decided_s=decided_s,
            decided_unix_s=decided_unix_s,
            done_unix_s=done_unix_s,
            duration_s=self._clock() - now_s,
            scrape=scrape,
            link=self._link,
            observation=observation,
            decision=decision,
            shadow=shadow,
            mode_since_unix_s=self._mode_since(override, decided_unix_s),
            override=override,
            fleet_override=self._overrides.fleet(decided_unix_s),
            override_ended=ended,
            ended_in_force=ended is not None and self.ever_in_force(ended),
            override_limited=limited,
            steered=steered,
            unmet=unmet,
            force=self._force.update(
                override.given if override else None, obeyed=unmet is None, now_unix_s=done_unix_s
            ),
            effect=effect,
            conditions=self._judge(decision, steered, effect, scrape, done_unix_s),
            control=self._control,
            info=self._info,
            preflight=self._params.preflight,
        )
        self.last = result
        await self._records.take(result)
        return result

    async def run(self, stop: asyncio.Event) -> None:
        """Tick every period until `stop` is set, then give the lease back."""
        try:
            while not stop.is_set():
                began_s = self._clock()
                self._wake.clear()  # before the turn: an order that comes during it deserves another
                await self._survive(began_s)
                left_s = self._params.period_s - (self._clock() - began_s)
                await self._wait(stop, max(left_s, self._params.period_s / 10))
        finally:
            await self._shut_down()

    def wake(self) -> None:
        """Tick now instead of at the end of the period: an operator has spoken."""
        self._wake.set()

    async def _survive(self, now_s: float) -> None:
        try:
            await self.tick(now_s)
        except Exception:
            self.failed_ticks += 1
            log.exception("a turn failed", extra={"repeat_key": "tick"})

    async def _wait(self, stop: asyncio.Event, seconds: float) -> None:
        waits = [asyncio.create_task(event.wait(), name="specgov-wait") for event in (stop, self._wake)]
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)

    async def _shut_down(self) -> None:
        try:
            async with asyncio.timeout(self._params.shut_down_within_s):
                held = await self._steering.shut_down()
            self.farewell = _HANDED_BACK if held else _NOTHING_HELD
            log.info("stopping: %s", self.farewell.detail)
        except (EngineError, TimeoutError) as error:
            why = str(error) or f"no answer within {self._params.shut_down_within_s:g} s"
            self.farewell = Farewell(False, f"the lease could not be given back, it ends by itself: {why}")
            log.warning("stopping: %s", self.farewell.detail)
        with contextlib.suppress(Exception):
            await self._scraper.aclose()

    def _note(self, scrape: Scrape) -> None:
        sample = scrape.sample
        self._control = sample.control or self._control
        gone = speaks_otherwise(scrape.errors.get("server_info"))
        self._info = sample.info or (None if gone else self._info)
        error = scrape.errors.get("speculation")
        if sample.control is not None:
            self._answered_s = sample.at_s
        elif (
            isinstance(error, EngineTimeoutError) and sample.at_s - self._answered_s < self._params.patience_s
        ):
            return  # a long prefill or a slow step; the lease outlasts it
        self._link = classify(sample.control, error, self._info, scrape.errors.get("loads"))

    def _mode_since(self, override: Override | None, now_unix_s: float) -> float:
        """Of an order that was given between two turns, that moment; of any other, its first turn here."""
        order = override.given if override else None
        if order != self._order:
            given = override.set_unix_s if override else now_unix_s
            before = self.last.decided_unix_s if self.last else self._mode_since_unix_s
            self._mode_since_unix_s = given if given >= before else now_unix_s
        self._order = order
        return self._mode_since_unix_s

    def _unmet(self, decision: Decision, steered: Steered, scrape: Scrape) -> str | None:
        """Why the engine is not seen to follow `decision`."""
        if self._params.dry_run:
            return None
        unmet = decision.detail if decision.reason in (Reason.NOT_BUILT, Reason.NOT_CONTROLLED) else None
        if found := out_of_reach(self._link, steered) or unmet:
            return found
        done = steered.lease is Lease.NONE if steered.wanted is None else steered.acknowledged
        if done:
            return None
        slow = slow_or_hangs(scrape) if scrape.sample.control is None else None
        return slow or steered.error or NOT_ACKNOWLEDGED

    def _obstacle(self, decision: Decision, steered: Steered) -> str | None:
        """Why control that is wanted cannot be tried."""
        if self._params.dry_run or decision.action is Action.RELEASE:
            return None
        unmet = decision.detail if decision.reason in (Reason.NOT_BUILT, Reason.NOT_CONTROLLED) else None
        return out_of_reach(self._link, steered) or unmet

    def _store_problem_in_full(self, now_unix_s: float) -> str | None:
        """With what a restart would do, where that is something else than what stands now."""
        problem = self._store_problem()
        if problem is None or self._overrides.durable or self._overrides.unread_on_disk is not None:
            return problem
        now, after = self._overrides.current(now_unix_s), self._overrides.after_restart(now_unix_s)
        if (now and now.given) == (after and after.given):
            return problem
        return f"{problem}; a restart of the sidecar now would put in force: {in_words(after)}"

    def _judge(
        self, decision: Decision, steered: Steered, effect: EffectState, scrape: Scrape, now_unix_s: float
    ) -> tuple[ActiveCondition, ...]:
        loads, control = scrape.sample.loads or scrape.sample.metrics, scrape.sample.control
        problems = (*(loads.problems if loads else ()), *(control.problems if control else ()))
        messages = judge(
            link=self._link,
            decision=decision,
            steered=steered,
            effect=effect,
            control=control,
            problems=problems,
            store_problem=self._store_problem_in_full(now_unix_s),
            unread=self._overrides.unread,
            fleet_problem=self._overrides.fleet_problem,
            token_problem=self._token_problem(),
            dry_run=self._params.dry_run,
        )
        remedies = {
            condition: MEANING[condition][1].replace(PREFLIGHT, self._params.preflight)
            for condition in messages
        }
        if Condition.FOREIGN_LEASE in messages and steered.holder is not None:
            free = self._release(steered.holder)
            remedies[Condition.FOREIGN_LEASE] = (
                f"if its holder still runs, stop one of the two; if not, free the engine at once: {free}"
            )
        return self._conditions.update(messages, now_unix_s, remedies)
