"""The runs on a page, and their summaries."""

import json
from pathlib import Path

import pytest

from fieldcraft.extensions.studio.run_view import load_run_views
from fieldcraft.extensions.studio.summaries import find_recipe_differences, summarise_run
from fieldcraft.types import UserError
from view_parts import append, trajectory, write_recipe, write_run


def test_a_run_has_its_stages_evaluations_and_files(tmp_path: Path) -> None:
    [run] = load_run_views([write_run(tmp_path / "one")])
    summary = summarise_run(run)
    assert [(s["name"], s["type"], s["steps"], s["of"]) for s in summary["stages"]] == [
        ("sft1", "sft", 3, 3),
        ("rl1", "rl", 5, 5),
    ]
    assert summary["evaluations"]["rl1"]["heldout"]["em"] == pytest.approx(2 / 3)
    assert (summary["notes"], summary["done"], summary["seed"]) == ([], False, 0)
    assert [(f.part, f.kind, f.path.name) for f in run.iter_files()] == [
        ("sft1", "evaluation", "sft1.jsonl"),
        ("rl1", "training", "000000.jsonl"),
        ("rl1", "training", "000004.jsonl"),
        ("rl1", "evaluation", "rl1.jsonl"),
    ]


def test_its_parts_stand_in_the_order_of_the_run(tmp_path: Path) -> None:
    [run] = load_run_views([write_run(tmp_path / "one", evaluation={"workflows": ["rag"]})])
    assert run.sort_parts(["rag", "rl1", "other", "sft1"]) == ["sft1", "rag", "rl1", "other"]


@pytest.mark.parametrize(
    ("splits", "name"), [({"heldout": 3}, "heldout"), ({"heldout": 3, "known": 3}, "all")]
)
def test_an_evaluation_of_one_split_has_its_name(
    tmp_path: Path, splits: dict[str, int], name: str
) -> None:
    run = write_run(tmp_path / "one", evaluation={"splits": splits})
    file = run / "evaluations" / "rl1.json"
    record = json.loads(file.read_text())
    del record["summary"]["splits"]
    file.write_text(json.dumps(record))
    [found] = load_run_views([run])
    assert list(summarise_run(found)["evaluations"]["rl1"]) == [name]


def test_what_failed_is_told_with_its_rate_and_cause(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one")
    rows = (run / "rl1" / "metrics.jsonl").read_text().splitlines()
    cause = "KeyError: 'city' (weather.py:12)"
    rows[0] = json.dumps(json.loads(rows[0]) | {"status/error": 0.5, "last_error": cause})
    (run / "rl1" / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    file = run / "evaluations" / "rl1.json"
    record = json.loads(file.read_text())
    record["summary"] |= {"broken_rate": 0.25, "broken_cause": cause}
    file.write_text(json.dumps(record))
    [found] = load_run_views([run])
    trained, evaluated = summarise_run(found)["notes"]
    assert trained.startswith("10.0% of the rollouts of stage 'rl1' in the 5 steps so far ended")
    assert evaluated == (
        f"25.0% of the rollouts of 'rl1' had a tool or engine failure, the last one: '{cause}'."
    )


def test_what_cannot_be_read_is_a_sentence_and_the_rest_goes_on(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one")
    (run / "evaluations" / "sft1.json").write_text('{"seconds"')
    (run / "sft1" / "metrics.jsonl").write_text("[]\n")
    other = write_run(tmp_path / "other")
    (other / "recipe.json").write_text('{"recipe": "sm')
    first, second = map(summarise_run, load_run_views([run, other]))
    assert len(first["notes"]) == 2
    assert "sft1/metrics.jsonl" in first["notes"][0]
    assert "sft1.json is not JSON" in first["notes"][1]
    assert [s["steps"] for s in first["stages"]] == [0, 5]
    assert list(first["evaluations"]) == ["rl1"]
    assert "recipe.json is not JSON" in second["notes"][0]
    assert (second["recipe"], second["stages"]) == (None, [])
    assert {f.part for f in load_run_views([other])[0].iter_files()} == {"sft1", "rl1"}


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ('{"seconds": 1.0}', "sft1.json lacks 'summary'; rename"),
        ('{"summary": [0.5]}', "sft1.json cannot be read"),
        ('{"summary": {"em": 0.5}}', "sft1.json lacks 'calls_mean'; rename"),
        ('{"summary": {"broken_rate": 0.2}}', "sft1.json lacks 'broken_cause'; rename"),
    ],
)
def test_an_evaluation_with_other_contents_is_a_sentence(
    tmp_path: Path, content: str, fault: str
) -> None:
    run = write_run(tmp_path / "one")
    (run / "evaluations" / "sft1.json").write_text(content)
    summary = summarise_run(load_run_views([run])[0])
    [note] = summary["notes"]
    assert fault in note
    assert list(summary["evaluations"]) == ["rl1"]
    assert summary["achieved"].startswith("rl1 answers 67 % of the questions")


def test_a_report_with_other_contents_is_a_sentence(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one")
    (run / "report.json").write_text('{"schema": 1}')
    summary = summarise_run(load_run_views([run])[0])
    [note] = summary["notes"]
    assert "report.json lacks 'evals'; rename" in note
    assert summary["achieved"].startswith("rl1 answers 67 % of the questions")


def test_recipes_differ_in_keys_and_a_missing_section_is_one(tmp_path: Path) -> None:
    first, two, odd = tmp_path / "one", tmp_path / "two", tmp_path / "odd"
    write_recipe(first)
    stages = {"rl1": {"type": "rl", "steps": 7, "optim": {"lr": 0.001}, "rewards": {"em": 1.0}}}
    write_recipe(two, stages=stages, seed=3)
    odd.mkdir()
    append(odd / "trajectories.jsonl", trajectory())
    found = {
        row["key"]: row["values"]
        for row in find_recipe_differences(load_run_views([first, odd, two]))
    }
    assert found.keys() == {"seed", "stages.sft1", "stages.rl1.steps"}
    assert found["seed"] == ["0", None, "3"]
    assert found["stages.rl1.steps"] == ["5", None, "7"]
    assert found["stages.sft1"][2] == "not set"
    assert find_recipe_differences(load_run_views([first])) == []


def test_names_are_short_and_differ(tmp_path: Path) -> None:
    for place in ("a/seed-0", "b/seed-0"):
        write_recipe(tmp_path / place)
    runs = load_run_views([tmp_path / "a/seed-0", tmp_path / "b/seed-0"])
    assert [run.name for run in runs] == ["a/seed-0", "b/seed-0"]
    (tmp_path / "a" / "recipe.json").write_text("{}")
    assert [run.path.name for run in load_run_views([tmp_path / "a"])] == ["seed-0"]
    with pytest.raises(UserError, match="given twice"):
        load_run_views([tmp_path / "a/seed-0", tmp_path / "a"])


def test_a_folder_of_trajectories_is_shown_too(tmp_path: Path) -> None:
    append(tmp_path / "branches.jsonl", trajectory())
    [run] = load_run_views([tmp_path])
    assert [(f.part, f.kind) for f in run.iter_files()] == [("branches", "other")]
    assert summarise_run(run)["notes"] == []


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a folder: give the folder of a run"):
        load_run_views([tmp_path / "none"])
    with pytest.raises(UserError, match="has neither a run nor trajectories"):
        load_run_views([tmp_path])
