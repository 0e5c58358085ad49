"""Data sets by their names on a hub, fetched with the real clients from a local hub."""

import io
import json
import math
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from fieldcraft.config.hub_names import identify_hub_dataset, parse_hub_dataset
from fieldcraft.data.corpora import CorpusFile
from fieldcraft.data.tasks import read_tasks
from fieldcraft.hub.dataset_files import resolve_data_file
from fieldcraft.types import UserError
from hub_parts import go_offline, hub, nobody_answers
from hub_server import TOKEN, Hub

__all__ = ["hub"]
NAME = "org/questions"
KEY = f"datasets/{NAME}"
ROWS = [{"question": f"Who made film {n}?", "answers": ["Ada"], "year": n} for n in range(3)]


def as_lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def as_parquet(rows: list[dict[str, Any]]) -> bytes:
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    return file.getvalue()


CARD = """\
---
configs:
- config_name: easy
  data_files: [{split: train, path: easy/train.parquet}, {split: test, path: easy/test.parquet}]
- config_name: hard
  data_files: [{split: train, path: hard.parquet}]
---
"""


@pytest.fixture
def several(hub: Hub) -> Hub:
    """Provide a data set with two configurations, one of which has two splits."""
    easy, hard = as_parquet(ROWS), as_parquet(ROWS[:1])
    files = {"README.md": CARD.encode(), "easy/train.parquet": easy, "hard.parquet": hard}
    hub.add(KEY, files | {"easy/test.parquet": as_parquet(ROWS[:2]), "load.py": b"1/0"})
    return hub


def refused(name: str) -> str:
    with pytest.raises(UserError) as raised:
        resolve_data_file(Path(name))
    assert str(raised.value).count("\n") == 0
    return str(raised.value)


def test_rows_are_written_once_with_their_commit(several: Hub) -> None:
    file = resolve_data_file(Path(f"hub:{NAME}/easy:train"))
    assert [json.loads(line) for line in file.read_text().splitlines()] == ROWS
    commit = several.repositories[KEY].refs["main"]
    assert identify_hub_dataset(file) == parse_hub_dataset(f"hub:{NAME}@{commit}/easy:train")
    several.requests.clear()
    assert resolve_data_file(Path(f"hub:{NAME}@{commit}/easy:train")) == file
    assert not several.requests
    assert resolve_data_file(Path(f"hub:{NAME}/easy:train")) == file
    assert not several.fetched()


def test_what_is_left_open_must_be_the_only_one(several: Hub) -> None:
    message = refused(f"hub:{NAME}")
    assert message.startswith(f"{NAME} has the configurations easy, hard: give one of them")
    assert message.endswith(f", as in hub:{NAME}/easy.")
    message = refused(f"hub:{NAME}/easy")
    assert message.startswith(f"{NAME} has the splits train, test: give one of them")
    assert message.endswith(f", as in hub:{NAME}/easy:train.")
    assert len(resolve_data_file(Path(f"hub:{NAME}/hard")).read_text().splitlines()) == 1
    assert "has no configuration 'odd': it has easy, hard" in refused(f"hub:{NAME}/odd:train")
    assert "has no split 'dev': it has train, test" in refused(f"hub:{NAME}/easy:dev")


def test_rows_are_read_as_questions_and_passages(hub: Hub) -> None:
    hub.add(KEY, {"train.jsonl": as_lines(ROWS)})
    passages = [{"title": "Film 0", "text": "Ada made it."}]
    hub.add("datasets/org/passages", {"data/train-00000-of-00001.parquet": as_parquet(passages)})
    tasks = read_tasks(Path(f"hub:{NAME}"))
    assert [task.question for task in tasks] == [row["question"] for row in ROWS]
    assert CorpusFile(resolve_data_file(Path("hub:org/passages:train"))).rejected_counts == {}


def test_numbers_of_pandas_that_are_not_finite_are_missing(hub: Hub) -> None:
    rows = [
        {"question": "Who?", "answer": "Ada", "level": math.nan, "metadata": {"share": math.inf}},
        {"question": "What?", "answer": "Bo", "level": 2.5, "metadata": {"share": 0.5}},
    ]
    hub.add(KEY, {"train.parquet": as_parquet(rows)})
    metas = [task.meta for task in read_tasks(Path(f"hub:{NAME}"))]
    assert metas == [{"share": None}, {"level": 2.5, "share": 0.5}]


def test_missing_columns_are_told_with_those_that_are_there(hub: Hub) -> None:
    hub.add(KEY, {"train.jsonl": as_lines([{"picture": "a", "label": 1}])})
    with pytest.raises(UserError, match=r"no question.*or rename one of picture, label"):
        read_tasks(Path(f"hub:{NAME}"))


def test_pictures_are_left_out_and_dates_are_texts(hub: Hub) -> None:
    import datetime

    rows = [{"question": "Who?", "answer": "Ada", "day": datetime.date(2024, 5, 1), "raw": b"ab"}]
    hub.add(KEY, {"train.parquet": as_parquet(rows)})
    [row] = map(json.loads, resolve_data_file(Path(f"hub:{NAME}")).read_text().splitlines())
    assert row == {"question": "Who?", "answer": "Ada", "day": "2024-05-01", "raw": "YWI="}


def test_what_the_hub_does_not_give(
    several: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "has no accessible repository of that name" in refused("hub:org/other:train")
    assert "has no revision 'v2'" in refused(f"hub:{NAME}@v2/easy:train")
    several.add("datasets/org/gated", {"train.jsonl": as_lines(ROWS)}, gated=True)
    message = refused("hub:org/gated:train")
    assert f"is gated: request access at {several.url}/datasets/org/gated, then set" in message
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert resolve_data_file(Path("hub:org/gated:train")).exists()
    several.add("datasets/org/none", {"README.md": b"# Nothing"})
    assert "hub:org/none:train@" not in (message := refused("hub:org/none:train"))
    assert "has no data files that the library datasets supports" in message
    several.add("datasets/org/broken", {"train.jsonl": b"{"})
    assert refused("hub:org/broken:train").startswith("hub:org/broken@")


@pytest.mark.parametrize("offline", [True, False])
def test_without_a_network(
    several: Hub, offline: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = resolve_data_file(Path(f"hub:{NAME}/hard"))
    if offline:
        go_offline(monkeypatch)
    else:
        nobody_answers(tmp_path / "cache", monkeypatch)
    for name in (f"hub:{NAME}/hard", f"hub:{NAME}/hard:train"):
        assert resolve_data_file(Path(name)) == file
    assert "is not in the cache" in refused("hub:org/other:train")
    assert "is not in the cache" in refused(f"hub:{NAME}/easy:train")
    file.unlink()
    assert "is not in the cache" in refused(f"hub:{NAME}/hard")
