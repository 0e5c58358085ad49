"""Fixtures that every test may use."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from fieldcraft.records import waits

settings.register_profile("no clock", deadline=None)  # a busy machine is no defect
settings.load_profile("no clock")


@pytest.hookimpl(optionalhook=True)  # without xdist nobody asks
def pytest_xdist_auto_num_workers() -> int:
    """Return the number of processes of `-n auto`: one more than CPUs, because tests also wait for
    files and for other processes."""
    return min((os.cpu_count() or 1) + 1, 8)


# A shell starts what it runs in the background deaf to Ctrl-C, and tests interrupt themselves.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def settings_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Consent that tests give, or that their runs remember, is not the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("settings")))
        yield


TESTS_OF_LONG_WAITS = ("test_waits.py", "test_long_waits.py")


@pytest.fixture(autouse=True)
def no_wait_is_long(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages about long waits would depend on the speed of the machine."""
    if request.path.name not in TESTS_OF_LONG_WAITS:
        monkeypatch.setattr(waits, "REPORT_AFTER_SECONDS", 86_400.0)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data beside the checkout; tests that need it skip where it is absent."""
    folder = Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the folder ../shared/data with real data is absent")
    return folder.parent


# Each takes half a minute or more. They begin first, or one worker would be left alone with them.
LONG = ("test_docs.py", "test_smoke.py", "test_resume.py", "test_seed_runs.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of two workers each begins with its half of the tests, so each half begins with long ones."""
    long = [item for item in items if item.nodeid.partition("::")[0].endswith(LONG)]
    rest = [item for item in items if item not in long]
    half = len(rest) // 2
    items[:] = [*long[::2], *rest[:half], *long[1::2], *rest[half:]]
