"""Lost files of a finished run are created again by the command that wrote them."""

import shutil

import pytest

from cli_parts import sentence, status
from fault_parts import Home

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("lost"))


@pytest.mark.parametrize(
    ("lost", "reader", "message"),
    [
        ("index", "ask", "index holds no search index: run the recipe again, which rebuilds it"),
        ("evaluations", "show", "out has no evaluation yet: resume it with 'fieldcraft run'."),
    ],
)
def test_a_finished_run_makes_again_what_it_has_lost(
    lost: str, reader: str, message: str, home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = home.path / "out" / "two" / "model" / "model.safetensors"
    trained = weights.stat().st_mtime_ns
    shutil.rmtree(home.path / "out" / lost)
    capsys.readouterr()
    assert status(*home.command(reader)) == 2
    assert message in sentence(capsys)
    assert status(*home.command("run", "out")) == 0
    assert status(*home.command(reader)) == 0
    assert weights.stat().st_mtime_ns == trained


def test_a_model_without_an_index_is_not_offered_a_search_in_silence(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert status(*home.command("eval", "model"), "--tool", "search") == 2
    assert "model has no search index or server: give --index or --search-url" in sentence(capsys)
