"""Fixtures that every test may use."""

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("no clock", deadline=None)  # a busy machine is no defect
settings.load_profile("no clock")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data beside the checkout; tests that need it skip where it is absent."""
    folder = Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the folder ../shared/data with real data is absent")
    return folder.parent
