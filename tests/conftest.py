"""Fixtures for all tests."""

import inspect
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from hypothesis import HealthCheck, settings

from fieldcraft.records import waits

# a slow, busy machine is not a failure
settings.register_profile("no clock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no clock")


@pytest.hookimpl(optionalhook=True)  # not called without xdist
def pytest_xdist_auto_num_workers() -> int:
    """Return the number of processes of `-n auto`: one more than CPUs, because tests also wait for
    files and for other processes."""
    return min((os.cpu_count() or 1) + 1, 8)


# Shells start background commands with SIGINT ignored; some tests interrupt themselves.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def settings_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep consent that tests give or that their runs remember apart from the user's settings."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("settings")))
        yield


@pytest.fixture(scope="session", autouse=True)
def answers_may_take_long() -> Iterator[None]:
    """Give the servers of tests more than the 5 s of httpx, which a busy machine may need.

    All clients and functions of httpx share one object as their default.
    """
    default = inspect.signature(httpx.AsyncClient).parameters["timeout"].default
    with pytest.MonkeyPatch.context() as patch:
        for name in ("connect", "read", "write", "pool"):
            patch.setattr(default, name, 300.0)
        yield


TESTS_OF_LONG_WAITS = ("test_waits.py", "test_long_waits.py")


@pytest.fixture(autouse=True)
def no_wait_is_long(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable messages about long waits, which would depend on the speed of the machine."""
    if request.path.name not in TESTS_OF_LONG_WAITS:
        monkeypatch.setattr(waits, "REPORT_AFTER_SECONDS", 86_400.0)


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the folder of real data next to the checkout; skip the test if it is missing."""
    folder = Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the folder ../shared/data with real data is absent")
    return folder.parent


# Each takes half a minute or more. They start first, so that none of them runs last and alone.
LONG = ("test_docs.py", "test_smoke.py", "test_resume.py", "test_seed_runs.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move long tests to the start of each half, since each of two workers starts with its own
    half."""
    long = [item for item in items if item.nodeid.partition("::")[0].endswith(LONG)]
    rest = [item for item in items if item not in long]
    half = len(rest) // 2
    items[:] = [*long[::2], *rest[:half], *long[1::2], *rest[half:]]
