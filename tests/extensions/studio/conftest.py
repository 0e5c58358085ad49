"""A real browser for the tests of pages."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("chromium is not installed")
    with (
        playwright.sync_playwright() as driver,
        driver.chromium.launch(executable_path=path, args=FLAGS) as started,
    ):
        yield started
