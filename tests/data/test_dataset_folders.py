"""Folders of Hugging Face's datasets library, and tables, as sources of records."""

from pathlib import Path

import pytest

from fieldcraft.data.record_files import write_records
from fieldcraft.data.tasks import read_tasks, write_verl
from fieldcraft.types import Task, UserError


def test_folders_of_parquet_and_their_splits(tmp_path: Path) -> None:
    rows = [{"question": f"Q{n}?", "answer": str(n)} for n in range(4)]
    for number, split in enumerate(["train", "train", "test"]):
        (tmp_path / "hub" / "data").mkdir(parents=True, exist_ok=True)
        write_records(
            [rows[number]], tmp_path / "hub" / "data" / f"{split}-0000{number}-of-2.parquet"
        )
    questions = [task.question for task in read_tasks(tmp_path / "hub" / "train")]
    assert questions == ["Q0?", "Q1?"]
    with pytest.raises(
        UserError, match=r"has the splits test, train: give one of them, as in .*hub/test"
    ):
        read_tasks(tmp_path / "hub")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="a folder without a dataset"):
        read_tasks(tmp_path / "empty")


def test_folders_of_save_to_disk(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_list(
        [{"question": "Q?", "answer": "A"}, {"question": "R?", "answer": "B"}]
    )
    datasets.DatasetDict(train=rows, test=rows.select([1])).save_to_disk(str(tmp_path / "both"))
    assert [task.question for task in read_tasks(tmp_path / "both" / "test")] == ["R?"]
    with pytest.raises(UserError, match="has the splits test, train"):
        read_tasks(tmp_path / "both")
    (tmp_path / "both" / "test" / "state.json").write_text("{")
    with pytest.raises(UserError, match="save the dataset again"):
        read_tasks(tmp_path / "both" / "test")


def test_what_has_no_place_in_a_table_is_a_sentence(tmp_path: Path) -> None:
    empty = [{"messages": [{"arguments": {}}]}]
    with pytest.raises(UserError, match=r"do not fit into one table .*: write out\.jsonl"):
        write_records(empty, tmp_path / "out.parquet")
    with pytest.raises(UserError, match=r"has an unsupported suffix"):
        write_records(empty, tmp_path / "out.txt")
    with pytest.raises(UserError, match=r"one table \(.* too large .*\): write out\.jsonl"):
        write_records([{"messages": [{"n": 10**30}]}], tmp_path / "out.parquet")
    for write in (
        lambda out: write_records([{"messages": [{"content": "a\ud83d"}]}], out),
        lambda out: write_verl([Task("1", "a\ud83d", ("A",))], out),
    ):
        with pytest.raises(UserError, match=r"cannot hold 'a\\ud83d': remove the characters"):
            write(tmp_path / "out.parquet")
    assert not list(tmp_path.iterdir())
