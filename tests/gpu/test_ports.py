"""Servers and sidecars of the kit get ports that no client can have taken, and lease holders of their own."""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

from kit.engines import GpuEngine  # noqa: E402 - the path comes first
from kit.ports import first_ephemeral, free_port  # noqa: E402
from kit.rehearsal import RehearsedServer  # noqa: E402
from kit.server import Server  # noqa: E402
from kit.session import Kit  # noqa: E402
from kit.setups import Setup  # noqa: E402
from kit.sidecar import SidecarFailedError  # noqa: E402

TAKEN = "error: api.host and api.port must be free to listen on, got 127.0.0.1:33038: [Errno 98]"


class Contested:
    """A sidecar whose first ports were taken between the look and the start."""

    taken = 0
    ports: list[int]
    message = TAKEN

    def __init__(self, name: str, port: int, *_: object) -> None:
        self.name, self._port = name, port
        type(self).ports.append(port)

    async def start(self) -> float:
        """Fails on as many ports as were taken."""
        if len(type(self).ports) <= type(self).taken:
            raise SidecarFailedError(f"not ready (exit status 2): {type(self).message}")
        return 0.5


@pytest.fixture
def kit(tmp_path):
    """A kit without servers."""
    kit = Kit(GpuEngine(), tmp_path, 60)
    yield kit
    kit.journal.close()


def contest(kit: Kit, taken: int, message: str = TAKEN) -> type[Contested]:
    """From now on the kit's sidecars meet so many taken ports."""
    kit.sidecar_class = type("Contested", (Contested,), {"taken": taken, "ports": [], "message": message})
    return kit.sidecar_class


def test_every_server_of_a_run_has_a_lease_holder_of_its_own(tmp_path):
    """What one run left in force is not taken for the next one's; the name says that it is a benchmark."""
    setup = Setup("table", speculative=True, hook=True)
    servers = [kind(setup, 20500, GpuEngine(), tmp_path, float) for kind in (Server, Server, RehearsedServer)]
    holders = [server.control.holder for server in servers]
    assert len(set(holders)) == 3
    assert all(re.fullmatch(r"specgov-bench/[A-Za-z0-9.-]+-[0-9]+-[0-9a-f]{8}", holder) for holder in holders)


def test_a_port_that_somebody_listens_on_is_passed_over():
    """The next one is given."""
    with socket.socket() as other:
        port = free_port(20500)
        other.bind(("127.0.0.1", port))
        other.listen()
        assert free_port(port) == port + 1


def test_ports_of_clients_are_never_given(tmp_path):
    """The range starts where the kernel says; at its edge there is an error that names the remedy."""
    kernel = tmp_path / "range"
    kernel.write_text("32768\t60999\n")
    assert first_ephemeral(kernel) == 32768
    with pytest.raises(RuntimeError, match="from 32768 to 32767 must be free, none is: set KIT_PORT lower"):
        free_port(32768, below=32768)


async def test_a_sidecar_whose_port_was_taken_in_between_starts_on_another(kit):
    """Two taken ports, then one that is free."""
    contested = contest(kit, taken=2)
    _, ready_s = await kit._start_sidecar("sidecar", {})
    assert ready_s == 0.5
    assert len(set(contested.ports)) == 3
    assert max(contested.ports) < first_ephemeral()


@pytest.mark.parametrize(("taken", "message", "tries"), [(9, TAKEN, 3), (9, "error: engine.url", 1)])
async def test_a_sidecar_that_fails_otherwise_or_always_is_not_tried_for_ever(kit, taken, message, tries):
    """Three ports at most, and one when the port is not what is wrong."""
    contested = contest(kit, taken, message)
    with pytest.raises(SidecarFailedError):
        await kit._start_sidecar("sidecar", {})
    assert len(contested.ports) == tries
