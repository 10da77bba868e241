"""What a load's HTTP client costs, and how late its answers are seen: httpx's pool beside `LoadTransport`.

    python -m tests.benchmarks.client_cost [--clients 64,128,256,512] [--answer-s 1.5] [--seconds 12] [--json]

A closed loop of so many clients on a server of a process of its own that answers each request after
`--answer-s`.  A client that keeps up sees answers after that time and a few milliseconds, whatever the number
of clients; one that does not measures itself.  Both ways in one run, one after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import httpx

from controller.bench.connections import LoadTransport

BODY = {"input_ids": list(range(200)), "sampling_params": {"max_new_tokens": 256}, "stream": False}
ANSWER = b'{"meta_info": {"completion_tokens": 256}}'
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(ANSWER)


def serve(listening: socket.socket, answer_s: float) -> None:
    """Answer every request of every connection after `answer_s`."""

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split()[0]))
                await asyncio.sleep(answer_s)
                writer.write(HEAD + ANSWER)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def run() -> None:
        server = await asyncio.start_server(connection, sock=listening, backlog=2048)
        await server.serve_forever()

    asyncio.run(run())


async def measure(url: str, transport: httpx.AsyncBaseTransport, clients: int, args: Any) -> dict[str, Any]:
    """A closed loop of `clients` for `args.seconds`."""
    seen: list[float] = []
    end_s = time.monotonic() + args.seconds

    async def client(number: int) -> None:
        await asyncio.sleep(args.answer_s * number / clients)
        while time.monotonic() < end_s:
            began_s = time.monotonic()
            await http.post(url, json=BODY)
            seen.append(time.monotonic() - began_s)

    async with httpx.AsyncClient(transport=transport, timeout=60) as http:
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        await asyncio.gather(*(client(number) for number in range(clients)))
    seen.sort()
    cpu_s = time.process_time() - began_cpu_s
    return {
        "requests": len(seen),
        "cpu_ms_per_request": 1000 * cpu_s / len(seen),
        "share_of_a_core": cpu_s / (time.monotonic() - began_s),
        "late_ms_p50": 1000 * (seen[len(seen) // 2] - args.answer_s),
        "late_ms_p99": 1000 * (seen[int(len(seen) * 0.99)] - args.answer_s),
    }


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", default="64,128,256,512")
    parser.add_argument("--answer-s", type=float, default=1.5)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    unlimited = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    ways: dict[str, Callable[[], httpx.AsyncBaseTransport]] = {
        "httpx's pool": lambda: httpx.AsyncHTTPTransport(limits=unlimited),
        "LoadTransport": LoadTransport,
    }
    listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/generate"
    server = multiprocessing.get_context("fork").Process(target=serve, args=(listening, args.answer_s))
    server.start()
    results = []
    try:
        for clients in (int(text) for text in args.clients.split(",")):
            for name, make in ways.items():
                found = asyncio.run(measure(url, make(), clients, args))
                results.append({"clients": clients, "client": name, **found})
                if not args.json:
                    print(line(results[-1]), flush=True)
    finally:
        server.terminate()
    if args.json:
        json.dump(results, sys.stdout, indent=1)


def line(found: dict[str, Any]) -> str:
    """One result for a person."""
    return (
        f"{found['clients']:5} clients, {found['client']:13} {found['requests']:6} requests, "
        f"{found['cpu_ms_per_request']:6.2f} ms CPU each ({found['share_of_a_core']:4.0%} of a core), "
        f"answers {found['late_ms_p50']:7.0f} ms late in the median, {found['late_ms_p99']:7.0f} at p99"
    )


if __name__ == "__main__":
    main()
