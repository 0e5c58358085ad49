"""A run folder of an earlier version, with former metric names, works like a current one."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from cli_parts import TINY, status
from fieldcraft.extensions.studio.run_view import load_run_views
from fieldcraft.extensions.studio.summaries import summarise_run
from fieldcraft.records.metrics import RENAMED_METRICS, MetricsLog
from fieldcraft.runs.folder import find_run

OLD_NAMES = {new: old for old, new in RENAMED_METRICS.items()}


def keys_of(value: Any) -> set[str]:
    match value:
        case dict():
            return {*value}.union(*map(keys_of, value.values()))
        case list():
            return set().union(*map(keys_of, value))
    return set()


def with_old_names(value: Any) -> Any:
    match value:
        case dict():
            return {OLD_NAMES.get(key, key): with_old_names(inner) for key, inner in value.items()}
        case list():
            return list(map(with_old_names, value))
    return value


def files_with_metrics(run: Path) -> list[Path]:
    found = (run.glob(name) for name in ("*/metrics.jsonl", "*/stage.json", "evaluations/*.json"))
    return [run / "report.json", *(path for paths in found for path in paths)]


def records(path: Path) -> list[Any]:
    text = path.read_text()
    return list(map(json.loads, text.splitlines() if path.suffix == ".jsonl" else [text]))


@pytest.fixture
def old(done: Path, tmp_path: Path) -> Path:
    copy = Path(shutil.copytree(done, tmp_path / done.name))
    for path in files_with_metrics(copy):
        path.write_text("".join(f"{json.dumps(with_old_names(r))}\n" for r in records(path)))
    return copy


def test_a_run_writes_the_new_names(done: Path) -> None:
    found = set().union(*(keys_of(records(path)) for path in files_with_metrics(done)))
    rl = {"no_signal_group_rate", "groups_trained", "sampling_batches"}
    costs = {"prompt_tokens_mean", "completion_tokens_mean"}
    assert rl | costs <= found & {*RENAMED_METRICS.values()}
    settings = keys_of(find_run(done).read_report()["config"])  # `ratio` is also a recipe key
    assert found & RENAMED_METRICS.keys() <= settings


def test_an_old_folder_reads_as_a_new_one(done: Path, old: Path) -> None:
    before, now = find_run(old), find_run(done)
    assert before.read_report()["evals"] == now.read_report()["evals"]
    assert before.read_report()["stages"] == now.read_report()["stages"]
    for name in now.recipe.stages:
        rows = MetricsLog(now.stage(name).metrics).read_rows()
        assert MetricsLog(before.stage(name).metrics).read_rows() == rows
        assert before.stage(name).read_record() == now.stage(name).read_record()
    for name in now.evaluations():
        assert before.evaluation(name).read_summary() == now.evaluation(name).read_summary()


def test_commands_and_the_page_take_an_old_folder(
    done: Path, old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = []
    for folder in (done, old):
        assert status("run", "smoke", *TINY, "--out", folder) == 0
        assert status("show", folder) == 0
        page = folder.parent / "compared.html"
        assert status("compare", folder / "sft2", folder / "rl2", "--out", page) == 0
        printed.append(capsys.readouterr().out.replace(str(folder), "RUN"))
    assert printed[0].replace(str(done.parent), "") == printed[1].replace(str(old.parent), "")
    [before], [now] = load_run_views([old]), load_run_views([done])
    names = ("stages", "evaluations", "achieved", "notes")
    assert [summarise_run(before)[n] for n in names] == [summarise_run(now)[n] for n in names]
