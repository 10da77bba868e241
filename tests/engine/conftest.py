"""Fixtures of the tests that run on the real SGLang on CPU; one server at a time, shared per mode."""

import contextlib
import os
import signal

import httpx
import pytest

from tests.engine.environment import EngineUnavailableError, engine_python, models_folder
from tests.engine.run_record import pytest_runtest_logreport, pytest_sessionfinish
from tests.engine.server import MODES, ON_REQUEST, Server

__all__ = ["pytest_runtest_logreport", "pytest_sessionfinish"]


def pytest_collection_modifyitems(items):
    """Mark everything here, and run the tests of one mode after another: each mode starts once."""
    here = [item for item in items if item.path.is_relative_to(__file__.rpartition("/")[0])]
    for item in here:
        item.add_marker(pytest.mark.engine)
        item.add_marker(pytest.mark.timeout(1200))
        variable = ON_REQUEST.get(mode_of(item))
        if variable and os.environ.get(variable) != "1":
            item.add_marker(pytest.mark.skip(reason=f"runs with {variable}=1"))
    order = {mode: i for i, mode in enumerate(MODES)}
    here.sort(key=lambda item: order.get(mode_of(item), -1))
    items[:] = [item for item in items if item not in here] + here


def mode_of(item):
    """The mode of a test's shared server; None: it has none."""
    return item.callspec.params.get("server") if hasattr(item, "callspec") else None


@pytest.fixture(scope="session")
def say(request):
    """Prints past pytest's capturing: an installation takes minutes and must not look like a hang."""
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def say(text):
        with capture.global_and_fixture_disabled():
            print(text, flush=True)

    return say


@pytest.fixture(scope="session")
def engine(say):
    """(interpreter, models); fails, never skips, where the real SGLang cannot be had."""
    try:
        python = engine_python(say)
        return python, models_folder(python)
    except EngineUnavailableError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture(scope="session")
def servers(engine, tmp_path_factory, say):
    """Gives the server of a mode, stopping the one of another mode first."""
    running = {}
    signal.signal(signal.SIGTERM, lambda *_: pytest.exit("terminated"))  # so that no server is left behind

    def of(mode):
        if mode not in running:
            while running:
                running.popitem()[1].stop()
            say(f"\nstarting the real SGLang, mode {mode}")
            running[mode] = Server(mode, *engine, tmp_path_factory.mktemp(mode)).start()
        return running[mode]

    yield of
    for server in running.values():
        server.stop()


@pytest.fixture
def server(request, servers):
    """The running server of the mode that the test is parametrized with, nothing in force on it."""
    server = servers(request.param)
    with contextlib.suppress(httpx.HTTPError):
        httpx.delete(f"{server.url}/speculation", timeout=30)
    yield server
    assert server.alive(), f"the server died:\n{server.log()[-3000:]}"


@pytest.fixture
async def client(server):
    """An HTTP client of that server."""
    async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
        yield client
