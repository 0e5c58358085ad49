"""The files of an evaluation whose questions have different numbers of samples."""

import json
from pathlib import Path

import pytest

from fieldcraft.evaluation.summary import summarise_evaluation
from fieldcraft.records.files import write_json
from fieldcraft.records.reading import DamagedFileError
from fieldcraft.records.trajectories import write_trajectories
from fieldcraft.runs.folder import find_run
from fieldcraft.runs.stage_files import EvaluationFiles
from fieldcraft.types import Task, Trajectory
from tiny_runs import run_tiny


def test_a_run_that_samples_some_data_sources_more_often_writes_its_report(tmp_path: Path) -> None:
    questions = [
        {"question": f"Who is {source}?", "answer": "Ada", "metadata": {"data_source": source}}
        for source in ("aime24", "math500", "gsm8k", "amc23")
    ]
    tasks = tmp_path / "sources.jsonl"
    tasks.write_text("".join(json.dumps(question) + "\n" for question in questions))
    sampling = ['evaluation.samples={"amc*": 4, default: 1}', "evaluation.temperature=0.6"]
    run = run_tiny(tmp_path, f"tasks={tasks}", "evaluation.splits={heldout: 2}", *sampling)
    entry = json.loads((run / "report.json").read_text())["evals"]["one"]
    assert (entry["n"], entry["sources"]["amc23"]["n"]) == (2, 4)
    assert len(find_run(run).evaluation("one").read()[0]) == 5


def write_files(folder: Path, written: int, recorded: int | None) -> EvaluationFiles:
    trajectories = [Trajectory(Task(str(n), "?", ()), rewards={"em": 1.0}) for n in range(3)]
    files = EvaluationFiles(folder / "rl.jsonl", folder / "rl.json")
    write_trajectories(files.trajectories, trajectories[:written])
    counted = {} if recorded is None else {"trajectories": recorded}
    write_json(
        files.summary, {"seconds": 1.0, "summary": summarise_evaluation(trajectories)} | counted
    )
    return files


@pytest.mark.parametrize(("written", "recorded"), [(2, 3), (2, None), (3, 4)])
def test_missing_trajectories_are_noticed(
    tmp_path: Path, written: int, recorded: int | None
) -> None:
    files = write_files(tmp_path, written, recorded)
    expected = recorded or 3
    with pytest.raises(
        DamagedFileError, match=f"holds {written} trajectories instead of {expected}"
    ):
        list(files.iterate())


def test_a_record_of_an_earlier_version_counts_by_its_summary(tmp_path: Path) -> None:
    assert len(list(write_files(tmp_path, 3, None).iterate())) == 3
