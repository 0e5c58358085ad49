"""Generated pages of the documentation agree with the schema and the command line."""

import re
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pytest

import fieldcraft
from fieldcraft.records.metrics import METRICS
from script_modules import load_script

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    return load_script("scripts/reference.py")


def test_the_pages_are_current(reference: ModuleType) -> None:
    """If this fails: run python scripts/reference.py, and check the changes."""
    assert reference.main(["--check"]) == 0


def test_an_outdated_page_is_found(
    reference: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(reference, "DOCS", tmp_path)
    assert reference.main([]) == 0
    assert reference.main(["--check"]) == 0
    page = tmp_path / "cli.md"
    page.write_text(page.read_text("utf-8").replace("--seed", "--sed"), "utf-8")
    assert reference.main(["--check"]) == 1
    output = capsys.readouterr().out
    assert output == "docs/cli.md is out of date: run python scripts/reference.py\n"
    with pytest.raises(SystemExit):
        reference.main(["--chek"])


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("    seed:", "    sed:", r"\['sed', 'seed'\]"),
        ("    lora.rank:", "    # rank:", "lora.rank"),
    ],
)
def test_every_key_has_one_description(
    reference: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    old: str,
    new: str,
    named: str,
) -> None:
    written = reference.DESCRIPTIONS.read_text("utf-8")
    assert written.count(old) == 1
    (tmp_path / "recipe_keys.yaml").write_text(written.replace(old, new), "utf-8")
    monkeypatch.setattr(reference, "DESCRIPTIONS", tmp_path / "recipe_keys.yaml")
    with pytest.raises(ValueError, match=named):
        reference.recipes_page()


@pytest.mark.parametrize(
    ("key", "type_", "default"),
    [
        ("seed", "integer", "`0`"),
        ("name", "text", "required"),
        ("model", "path", "`null`"),
        ("device", "`auto` \\| `cpu` \\| `cuda`", '`"auto"`'),
        ("lora.rank", "integer > 0", "`32`"),
        ("search.failures", "number ≥ 0 < 1", "`0.0`"),
        ("tools[].cost", "number ≥ 0 or mapping to number ≥ 0", "`1.0`"),
        ("SECTION.top_p", "number > 0 ≤ 1", "`null`"),
        ("evaluation.splits", "mapping to integer ≥ 0", '`{"heldout": 500}`'),
        ("stages.NAME.keep_checkpoints", "integer > 0 or `all`", "`null`"),
        ("stages.SUPERVISED.steps", "integer > 0", "`null`"),
        ("stages.RL.steps", "integer > 0", "required"),
        ("stages.RL.async.max_staleness", "integer ≥ 0", "`0`"),
        ("stages.RL.critic.optim", "section", "`null`"),
        ("stages.DISTIL.algorithm", "text", '`"distil"`'),
    ],
)
def test_a_key_has_its_type_and_its_default(
    reference: ModuleType, key: str, type_: str, default: str
) -> None:
    assert reference.recipe_keys()[key] == reference.Key(type_, default)


def test_a_section_is_listed_once(reference: ModuleType) -> None:
    keys = reference.recipe_keys()
    assert {"lora", "budget.fold", "evaluation.temperature", "stages"} & keys.keys() == set()
    assert [key for key in keys if key.endswith("weight_decay")] == [
        "stages.NAME.optim.weight_decay"
    ]


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (int, "integer"),
        (float | None, "number"),
        (list[Path] | None, "path, repeatable"),
        (Literal["a", "b"] | None, "`a` \\| `b`"),
        (bool, "flag"),
    ],
)
def test_a_parameter_has_its_type(reference: ModuleType, annotation: Any, text: str) -> None:
    assert reference.annotation_text(annotation) == text


def test_commands_of_groups_and_both_names_of_a_flag_are_there(reference: ModuleType) -> None:
    page = reference.cli_page()
    assert "\n## serve agent\n" in page
    assert "\n## serve\n" not in page
    assert "| `--correct / --incorrect` | flag | |" in page
    assert "`fieldcraft run RECIPE [KEY=VALUE]...`: " in page
    assert "\n## studio\n" in page
    assert "\n## view\n" not in page  # its old name, which help does not list


def test_every_public_name_is_on_the_page_of_the_api() -> None:
    page = (ROOT / "docs/api.md").read_text("utf-8")
    listed = re.findall(r"^::: fieldcraft\.(\w+)$", page, re.MULTILINE)
    assert sorted([*listed, "__version__"]) == fieldcraft.__all__


def test_the_metrics_in_tables_are_declared() -> None:
    pages = [page.read_text("utf-8") for page in (ROOT / "docs").rglob("*.md")]
    tables = re.findall(r"^\| metric.*\n\|---.*\n((?:\|.*\n)+)", "\n".join(pages), re.MULTILINE)
    cells = [row.split("|")[1] for table in tables for row in table.splitlines()]
    assert len(cells) > 15
    keys = {key for cell in cells for key in re.findall(r"`([^`]+)`", cell)}
    assert keys <= METRICS.keys()
    assert {metric.key for metric in METRICS.values() if metric.signals} <= keys


def test_the_files_and_tests_of_the_architecture_are_there() -> None:
    text = (ROOT / "docs/architecture.md").read_text("utf-8")
    table = text.partition("| component | file | test |\n")[2].partition("\n\n")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines()[1:]]
    assert len(rows) > 30
    for _, files, tests in rows:
        for path in re.findall(r"`([^`]+)`", files):
            assert (ROOT / "src/fieldcraft" / path).is_file(), path
        for path in re.findall(r"`([^`]+)`", tests):
            assert (ROOT / "tests" / path).is_file(), path
