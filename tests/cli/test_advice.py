"""Three hundred faults: each ends in one sentence, whose advice destroys nothing and works."""

import shutil
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from bad_servers import OF_HEADERS, answers, drips, raw_server, redirects, resets
from fault_parts import Home, draw, ended, follow, read_sentences
from fieldcraft.extensions.search.index import SearchIndex
from fieldcraft.extensions.search.server import create_app
from fieldcraft.tools.serving import serve_in_thread
from ports import NOBODY

COUNT = 300
SAMPLE = (3, 8, 10, 11, 13, 23, 24, 25, 28, 51)  # of the default suite: fast ones of all kinds
ROUNDS = 3  # advice may lead to another fault
BEHAVIOURS: dict[str, Callable[[socket.socket], None]] = {
    "garbage": answers(b"\xff\xfe<html>", "text/html"),
    "nothing there": answers(b"{}", status=404),
    "broken": answers(b"{}", status=500),
    "no passages": answers(b'{"result": 3}'),
    "reset": resets,
    "in a circle": redirects,
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("faults"))


def run_sentences(command: list[str], capsys: Any) -> list[str]:
    """Return the sentences with which a command fails; an empty list if it succeeds."""
    capsys.readouterr()
    code = ended(command)
    assert code in (0, 2), code
    return read_sentences(capsys.readouterr().err, command) if code else []


def try_fault(home: Home, seed: int, capsys: Any) -> bool:
    """Apply a fault and follow the advice until the command works. Return whether there was any."""
    home.restore_all()
    fault = draw(home, seed)
    fault.spoil(home.path / fault.path)
    with fault.around():
        sentences = initial = run_sentences(fault.command, capsys)
    for _ in range(ROUNDS):
        if not sentences:
            return bool(initial)
        for before in follow(sentences, home, fault):
            assert run_sentences(before, capsys) == [], (sentences, before)
        if not (home.path / "new" / "recipe.json").exists():  # no run can resume from it
            shutil.rmtree(home.path / "new", ignore_errors=True)
        with fault.stays():
            again = run_sentences(fault.command, capsys)
        assert again != sentences, again
        sentences = again
    raise AssertionError(f"no advice helps: {sentences}")


@pytest.mark.long
def test_faults_end_in_a_sentence_that_helps(home: Home, capsys: Any) -> None:
    noticed = [try_fault(home, seed, capsys) for seed in SAMPLE]
    assert sum(noticed) >= len(noticed) / 2


@pytest.mark.slow
def test_all_faults_end_in_a_sentence_that_helps(home: Home, capsys: Any) -> None:
    noticed = [try_fault(home, seed, capsys) for seed in range(COUNT)]
    assert sum(noticed) >= COUNT / 2


@pytest.mark.parametrize(
    "name",
    [*BEHAVIOURS, "nobody listens", pytest.param("slow headers", marks=pytest.mark.slow)],
)
def test_servers_that_cannot_be_searched_with(name: str, home: Home, capsys: Any) -> None:
    home.restore_all()

    def asking(url: str) -> list[str]:
        return [*home.command("ask"), "--search-url", url]

    slow = drips(OF_HEADERS, lambda: time.sleep(0.02))
    if name != "nobody listens":
        with raw_server(BEHAVIOURS.get(name, slow)) as (url, _):
            [message] = run_sentences(asking(url), capsys)
    else:
        url = NOBODY
        [message] = run_sentences(asking(url), capsys)
    assert url in message
    assert "start" in message or "search.url" in message or "--search-url" in message, message
    with serve_in_thread(create_app(SearchIndex.load(home.path / "index"))) as good:
        assert run_sentences(asking(good), capsys) == []
