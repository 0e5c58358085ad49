"""Every sandbox backend that this machine has."""

from collections.abc import Iterator

import pytest
from backend_parts import LIMITS, SETTINGS
from container_images import list_containers, open_image
from sandbox_parts import find_engine

from fieldcraft.extensions.sandbox.backends.factory import open_backend
from fieldcraft.extensions.sandbox.limits import SandboxLimits
from fieldcraft.extensions.sandbox.sandbox import Sandbox
from fieldcraft.extensions.sandbox.server import create_app
from fieldcraft.tools.serving import serve_in_thread
from fieldcraft.types import UserError


@pytest.fixture(scope="session")
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="session")
def e2b(patch):
    pytest.importorskip("e2b", reason="needs the extra e2b")
    from e2b_server import serve_e2b

    with serve_e2b(patch) as server:
        yield server
    assert server.running == {}


@pytest.fixture(scope="session")
def engine() -> Iterator[str]:
    engine = find_engine()
    yield engine
    assert list_containers(engine) == []


@pytest.fixture(scope="session")
def image(engine) -> Iterator[str]:
    with open_image(engine, "localhost/fieldcraft-test:python") as name:
        yield name


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    try:
        sandbox = Sandbox(LIMITS, libraries=())
    except UserError as error:
        pytest.skip(f"this system has no full isolation: {error}")
    with sandbox, serve_in_thread(create_app(sandbox)) as url:
        yield url


@pytest.fixture
def open_named(request):
    """Open the backend of the test's parameter, with some limits."""

    def make(name: str, limits: SandboxLimits = LIMITS):
        try:
            return open_backend(name, SETTINGS[name](request), limits, None, "this test")
        except UserError as error:
            if name == "local":
                pytest.skip(f"this system has no full isolation: {error}")
            raise

    return make
