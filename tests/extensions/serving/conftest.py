"""Clients are closed at the end of each test."""

from collections.abc import Iterator

import pytest

from serving_parts import close_clients


@pytest.fixture(autouse=True)
def no_client_stays() -> Iterator[None]:
    yield
    close_clients()
