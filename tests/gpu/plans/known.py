"""Does every request get its tokens, whatever switches?  Real drafts, every output token known.  3 minutes.

SWITCHES=20000 changes of depth at most, for at most SECONDS=90, on models of an 8B model's width whose greedy
successor is known (`make_models.py`, made here first: 20 s, 1 GB), with 24 clients; GRAPHS=1,2,4,8: CUDA
graphs for these batch sizes only, so that larger batches run without (SGLang's log says which do).  Random
tables, gears and probes ten times a second, leases that end, hand-backs, aborts; every answer is compared
token by token.  Then JSON by schema, whose strings the draft can guess, while depths and gears switch.
PARTS=tokens,json.
"""

import asyncio
import json
import os
import random
import re
import sys
from pathlib import Path

from kit import setups
from kit.session import Kit

from controller.bench.arms import parse_arm
from controller.bench.engine import EngineRefusedError

HERE = Path(__file__).resolve().parent.parent
MAKER = next(
    p for p in (HERE / "models" / "make_known.py", HERE.parent / "engine" / "make_models.py") if p.exists()
)
PARTS = os.environ.get("PARTS", "tokens,json").split(",")
SWITCHES = int(os.environ.get("SWITCHES", "20000"))
SECONDS = float(os.environ.get("SECONDS", "90"))
DEPTHS = (0, 1, 3)
GEARS = ("warm", "cold", "frozen")
CLIENTS = 24
JSON_SECONDS, JSON_CLIENTS = 25.0, 8
VOCABULARY = 512
WORDS = ("abcdefghijklm", "nopqrstuvwxyz", "ABCDEFGHIJ")
SCHEMA = json.dumps(
    {
        "type": "object",
        "additionalProperties": False,
        "required": ["first", "second", "n"],
        "properties": {
            "first": {"enum": list(WORDS)},
            "second": {"enum": list(WORDS)},
            "n": {"type": "integer", "minimum": 0, "maximum": 99},
        },
    }
)


async def run(kit: Kit) -> None:
    folder = kit.out / "known"
    await make_models(kit, folder)
    setup = setups.known(setups.table("known", DEPTHS), folder)
    graphs = tuple(int(n) for n in os.environ["GRAPHS"].split(",")) if "GRAPHS" in os.environ else None
    (server,) = await kit.start(setup.but(graph_batch_sizes=graphs or setup.graph_batch_sizes))
    kit.record("speculation", server=server.name, body=await server.control.state())
    if "tokens" in PARTS:
        async with kit.part("known tokens"):
            await tokens(kit, server)
    if "json" in PARTS:
        async with kit.part("json"):
            await constrained(kit, server)
    state = await server.control.state() or {}
    kit.record(
        "after", server=server.name, plain_decode=state.get("plain_decode"), telemetry=state.get("telemetry")
    )


async def make_models(kit: Kit, folder: Path) -> None:
    """Write the models, in an interpreter that finds what the servers find."""
    if kit.rehearsed or kit.engine.has_models or (folder / "draft" / "config.json").exists():
        return
    environment = kit.engine.environment(setups.plain(), kit.out)
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(MAKER), str(folder), "wide",
        env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"the models could not be made: {said.decode()[-2000:]}")


def successors(token: int, count: int) -> list[int]:
    """What the target says after `token`; the rule of `make_models.py`."""
    found = []
    for _ in range(count):
        token = (token + (9 if token % 8 == 7 else 1)) % VOCABULARY
        found.append(token)
    return found


def random_plan(draw: random.Random) -> tuple[list[dict], dict | None, float]:
    """Rows of one to three depths, mostly a probe that makes every other step a switch, and a lease."""
    starts = [1, *sorted(draw.sample(range(2, CLIENTS), draw.randint(0, 2)))]
    rows = [row(draw, draw.choice(DEPTHS), min_batch_size=start) for start in starts]
    other = draw.choice([depth for depth in DEPTHS if depth != rows[0]["depth"]])
    probe = row(draw, other, every_steps=draw.randint(2, 3), burst_steps=1)
    return rows, probe if draw.random() < 0.9 else None, 1.0 if draw.random() < 0.1 else 30.0


def row(draw: random.Random, depth: int, **more: int) -> dict:
    """A depth, with a gear where it is 0."""
    return {"depth": depth, **more} | ({} if depth else {"gear": draw.choice(GEARS)})


class Tally:
    """What the clients saw."""

    def __init__(self) -> None:
        self.right = self.wrong = self.aborted = self.refused = 0
        self.first_wrong: list[dict] = []


async def tokens(kit: Kit, server) -> None:
    """Steer at random until there were enough switches or the time is over, and check every answer."""
    draw, tally = random.Random(5), Tally()
    end_s, from_s, plans, switches = kit.now() + SECONDS, kit.now(), 0, 0
    clients = [asyncio.create_task(client(kit, server, n, end_s, tally)) for n in range(CLIENTS)]
    while kit.now() < end_s and switches < SWITCHES:
        rows, probe, lease_s = random_plan(draw)
        try:
            await server.control.put(rows, lease_s=lease_s, probe=probe)
        except EngineRefusedError:
            tally.refused += 1
        plans += 1
        await asyncio.sleep(1.3 if draw.random() < 0.02 else 0.1)
        if draw.random() < 0.02:
            await server.control.release()
        state = await server.control.state() or {}
        switches = sum(rank.get("switches", 0) for rank in state.get("telemetry") or [])
    for task in clients:
        task.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    state = await server.control.state() or {}
    kit.record(
        "known", server=server.name, seconds=kit.now() - from_s, plans=plans, switches=switches,
        leases_ended=state.get("lease", {}).get("expired"),
        hook_errors=[rank.get("hook_errors") for rank in state.get("telemetry") or []], **vars(tally),
    )  # fmt: skip
    kit.say("known tokens:", vars(tally), "switches", switches)


async def client(kit: Kit, server, number: int, end_s: float, tally: Tally) -> None:
    """Requests one after another; one in twenty is given up by its client."""
    draw = random.Random(number)
    while kit.now() < end_s:
        start, count = draw.randint(3, 400), draw.randint(16, 200)
        body = {
            "input_ids": [start],
            "stream": False,
            "sampling_params": {"temperature": 0.0, "max_new_tokens": count, "ignore_eos": True},
        }
        asked = server.http.post("/generate", json=body)
        if draw.random() < 0.05:
            task = asyncio.create_task(asked)
            await asyncio.sleep(0.05)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            tally.aborted += 1
            continue
        found = (await asked).json().get("output_ids")
        if found == successors(start, count):
            tally.right += 1
        else:
            tally.wrong += 1
            if len(tally.first_wrong) < 3:
                tally.first_wrong.append({"start": start, "found": found})


async def constrained(kit: Kit, server) -> None:
    """JSON by schema, greedy and sampled, while depths and gears switch four times a second."""
    # the first sampled verify may have SGLang compile its kernels for minutes, answering nothing meanwhile
    sampled = {"temperature": 1.0, "max_new_tokens": 8}
    await server.http.post(
        "/generate", json={"input_ids": [[5]], "sampling_params": sampled, "stream": False}
    )
    end_s = kit.now() + JSON_SECONDS
    counts = {"valid": 0, "invalid": 0, "accepted_drafts": 0, "switches": 0}
    bad: list[str] = []

    async def ask(number: int) -> None:
        draw = random.Random(number)
        while kit.now() < end_s:
            sampling = {"temperature": float(number % 2), "max_new_tokens": 120, "json_schema": SCHEMA}
            body = {"input_ids": [draw.randint(3, 400)], "stream": False, "sampling_params": sampling}
            answer = (await server.http.post("/generate", json=body)).json()
            drafts = answer.get("meta_info", {}).get("spec_num_correct_drafts")
            counts["accepted_drafts"] += int(drafts or 0)
            good = is_valid(answer.get("text", ""))
            counts["valid" if good else "invalid"] += 1
            if not good and len(bad) < 3:
                bad.append(json.dumps(answer)[:500])

    async def switch() -> None:
        while kit.now() < end_s - 0.5:
            arm = parse_arm(
                ("off-cold", "depth-3", "off-warm", "depth-1", "off-frozen")[counts["switches"] % 5]
            )
            await server.control.apply(arm.fixed, lease_s=60)
            counts["switches"] += 1
            await asyncio.sleep(0.25)

    await asyncio.gather(switch(), *(ask(number) for number in range(JSON_CLIENTS)))
    kit.record("grammar", server=server.name, **counts, bad=bad)
    kit.say("json:", counts, bad[:1])


def is_valid(text: str) -> bool:
    """Whether `text` is one object of `SCHEMA`."""
    try:
        found = json.loads(text)
    except ValueError:
        return False
    return (
        isinstance(found, dict)
        and set(found) == {"first", "second", "n"}
        and {found["first"], found["second"]} <= set(WORDS)
        and re.fullmatch("[0-9]{1,2}", str(found["n"])) is not None
    )
