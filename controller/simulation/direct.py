"""TEMPORARY: observations straight from the engine until the hook and the observer can be wired in."""

from __future__ import annotations

from typing import Any

from controller.simulation.arms import Arm as EngineArm
from policies.types import Arm, CellDelta, Decision, Gear, Observation, Schedule

BUCKETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


class DirectControl:
    """Follows a `policies.types` decision and gathers cells; `observe` gives the difference."""

    def __init__(self, initial: EngineArm) -> None:
        self.schedule = Schedule.constant(Arm(initial[0], Gear(initial[1])))
        self.probe: Any = None
        self.probing = False
        self._cells: dict[tuple[int, EngineArm], dict[str, Any]] = {}
        self._last_s: float | None = None
        self._clean = False
        self._last_arm: EngineArm | None = None
        self.switches = self.steps = self.prefills = self.probe_steps = 0
        self._in_range = self._bursts = self._burst_left = 0

    def apply(self, decision: Decision) -> None:
        if decision.schedule is None:
            return
        if decision.probe != self.probe or decision.schedule != self.schedule:
            self._in_range = self._bursts = self._burst_left = 0
        self.schedule, self.probe = decision.schedule, decision.probe

    def arm_for(self, batch_size: int) -> EngineArm:
        p = self.probe
        self.probing = False
        if p is not None and self._bursts <= p.bursts:
            if p.min_batch_size <= batch_size <= p.max_batch_size:
                self._in_range += 1
                if self._burst_left == 0 and self._in_range % p.every_steps == 0 and self._bursts < p.bursts:
                    self._burst_left, self._bursts = p.burst_steps, self._bursts + 1
                if self._burst_left:
                    self._burst_left -= 1
                    self.probe_steps += 1
                    self.probing = True
                    return p.arm.depth, str(p.arm.gear)
            else:
                self._burst_left = 0
        arm = self.schedule.arm_for(batch_size)
        return arm.depth, str(arm.gear)

    def on_prefill(self) -> None:
        self.prefills += 1
        self._clean = False

    def on_result(self, now_s, arm, requests, drafts, context_tokens) -> None:  # type: ignore[no-untyped-def]
        batch_size = len(requests)
        accepted, accepted_after_cold = [0] * (arm[0] + 1), [0] * (arm[0] + 1)
        for request, n in zip(requests, drafts, strict=True):
            (accepted_after_cold if hasattr(request, "_was_cold") else accepted)[n] += 1
        if arm[1] == "cold":
            for request in requests:
                request._was_cold = True
        bucket = max(b for b in BUCKETS if b <= batch_size)
        cell = self._cells.setdefault(
            (bucket, arm),
            {
                "steps": 0,
                "request_steps": 0,
                "tokens": 0,
                "accepted": [0] * (arm[0] + 1),
                "cold": [0] * (arm[0] + 1),
                "n": 0,
                "s": 0.0,
                "ss": 0.0,
                "rs": 0,
                "ctx": 0,
            },
        )
        self.steps += 1
        cell["steps"] += 1
        cell["request_steps"] += batch_size
        for i in range(arm[0] + 1):
            cell["accepted"][i] += accepted[i]
            cell["cold"][i] += accepted_after_cold[i]
            cell["tokens"] += (i + 1) * (accepted[i] + accepted_after_cold[i])
        if arm != self._last_arm:
            self.switches += self._last_arm is not None
            self._clean, self._last_arm = False, arm
        if self._clean and self._last_s is not None:
            gap = now_s - self._last_s
            cell["n"] += 1
            cell["s"] += gap
            cell["ss"] += gap * gap
            cell["rs"] += batch_size
            cell["ctx"] += context_tokens
        self._clean, self._last_s = True, now_s

    def observe(self, engine: Any) -> Observation:
        cells = tuple(
            CellDelta(
                bucket,
                Arm(arm[0], Gear(arm[1])),
                c["steps"],
                c["request_steps"],
                c["tokens"],
                tuple(c["accepted"]),
                tuple(c["cold"]),
                c["n"],
                c["s"],
                c["ss"],
                c["rs"],
                c["ctx"],
            )
            for (bucket, arm), c in self._cells.items()
        )
        observation = Observation(
            now_s=engine.now_s,
            built=tuple(Arm(d, Gear(g)) for d, g in engine.arms),
            running_reqs=engine.running,
            queue_reqs=engine.waiting,
            batch_size=engine.running,
            context_tokens=engine.context_tokens,
            token_usage=engine.context_tokens / engine.config.kv_tokens,
            max_running_reqs=engine.config.max_running_requests,
            load_age_s=0.0,
            cells=cells,
            decode_steps=self.steps,
            prefill_batches=self.prefills,
            switches=self.switches,
            probe_steps=self.probe_steps,
            telemetry_age_s=0.0,
            in_force=self.schedule,
            in_use=Arm(self._last_arm[0], Gear(self._last_arm[1])) if self._last_arm else None,
        )
        self._cells = {}
        self.steps = self.prefills = self.switches = self.probe_steps = 0
        return observation
