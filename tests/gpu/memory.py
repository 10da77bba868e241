"""What a server says of GPU memory while it starts, as JSON:  memory.py SERVER.log ... > memory.json

Each line with `avail mem` (the whole GPU's: servers that start at the same time show up in each other's), in
order of time.  Where SGLang captures graphs without a word (the target's, of every depth after the first) the
difference between two lines is what they cost.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

LINE = re.compile(r"^\[(\S+ \S+?)(?: TP0)?\] (.*?avail(?:able_gpu)?[ _]mem=([0-9.]+) GB)")
WIDTH = re.compile(r"num_tokens_per_req=(\d+)")
STEP = re.compile(
    r"^(?:Capture (.*?) (begin|end)|(Load weight begin|Load weight end|Memory pool end)|max_total)"
)


def marks(log: Path) -> list[dict]:
    """What was done, tokens per request of a graph, and gigabytes left."""
    found = []
    for line in log.read_text(errors="replace").splitlines():
        match = LINE.match(line)
        step = STEP.match(match[2]) if match else None
        if match and step:
            width = WIDTH.search(match[2])
            what = f"{step[1]} {step[2]}" if step[1] else step[3] or "all built"
            found.append(
                {
                    "at": match[1],
                    "what": what,
                    "tokens_per_request": int(width[1]) if width else None,
                    "available_gb": float(match[3]),
                }
            )
    return found


if __name__ == "__main__":
    logs = {f"{Path(p).parent.name}/{Path(p).stem}": marks(Path(p)) for p in sys.argv[1:]}
    json.dump(logs, sys.stdout, separators=(",", ":"))
