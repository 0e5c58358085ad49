"""Runs without the extension that writes pages."""

import json
from pathlib import Path

import pytest

from fieldcraft.config.components import PAGE_WRITERS
from fieldcraft.evaluation.pages import find_page_writer
from fieldcraft.extensions.curation.filtering import write_data_card
from fieldcraft.extensions.curation.filters import DataCard
from fieldcraft.runs.folder import RunFolder
from fieldcraft.runs.run_comparison import compare_runs
from fieldcraft.types import UserError
from seeds_parts import recipe

CARD = DataCard("mini", "demonstrations", 0, {}, [])


@pytest.fixture
def no_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fieldcraft.evaluation.pages.PAGE_EXTENSION", "fieldcraft.extensions.none")


def test_every_kind_of_page_has_its_writer() -> None:
    assert all(callable(find_page_writer(kind)) for kind in PAGE_WRITERS)


def test_a_data_card_is_its_numbers(tmp_path: Path, no_pages: None) -> None:
    write_data_card(CARD, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["card.json"]
    assert json.loads((tmp_path / "card.json").read_text())["title"] == "mini"


def test_with_the_extension_the_numbers_are_written_last(tmp_path: Path) -> None:
    """Whoever finds them also finds the page."""
    (tmp_path / "card.json").mkdir()  # so that writing the numbers fails
    with pytest.raises(OSError, match=r"card\.json"):
        write_data_card(CARD, tmp_path)
    assert (tmp_path / "card.html").exists()


def test_a_run_is_done_with_its_numbers_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path, recipe(stages={}, table_rows={}, seeds=[]))
    folder.report_json.write_text("{}")
    assert not folder.is_done  # the page is missing
    monkeypatch.setattr("fieldcraft.evaluation.pages.PAGE_EXTENSION", "fieldcraft.extensions.none")
    assert folder.is_done
    assert folder.report == folder.report_json


def test_a_comparison_is_a_page(tmp_path: Path, no_pages: None) -> None:
    with pytest.raises(UserError, match="no page can be written"):
        compare_runs([tmp_path, tmp_path], tmp_path / "compared.html")
