"""The card of an exported model says what is known, and its program runs."""

import contextlib
import io
import re
from pathlib import Path

import pytest
import yaml

from checkpoints import write_tiny_checkpoint
from cli_parts import status
from fieldcraft.runs.agent import find_agent
from fieldcraft.runs.folder import find_run
from fieldcraft.runs.model_card import QUESTION


@pytest.fixture(scope="module")
def exported(done: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cards") / "my-export"
    assert status("export", done, "--out", out, "--dtype", "float32") == 0
    return out


def card(folder: Path) -> str:
    return (folder / "README.md").read_text("utf-8")


def programs(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def test_it_has_the_figures_of_the_report(done: Path, exported: Path) -> None:
    text, report = card(exported), find_run(done).read_report()
    found = report["evals"]["rl2"]
    low, high = found["em_ci95"]
    row = (
        f"| `rl2` | {found['n']} | {found['em']:.3f} [{low:.3f}, {high:.3f}] | {found['f1']:.3f} |"
    )
    assert row in text
    assert "workflow" not in text
    lines = re.findall(r"^\| `(\w+)` \| (\w+) \| (\d+) \| `(.*)` \|$", text, re.MULTILINE)
    assert [line[:3] for line in lines] == [
        (name, "sft" if name != "rl2" else "rl", str(len(rows)))
        for name, rows in ((n, _rows(done, n)) for n in ("base", "sft2", "rl2"))
    ]
    assert "train_on" not in lines[0][3]  # what the recipe does not say is not listed


def _rows(run: Path, stage: str) -> list[str]:
    return (run / stage / "metrics.jsonl").read_text().splitlines()


def test_its_front_matter_is_yaml_that_a_hub_reads(exported: Path) -> None:
    _, front, _ = card(exported).split("---\n", 2)
    assert yaml.safe_load(front) == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "license": "unknown",
        "tags": ["fieldcraft", "agent", "autocoa"],
    }
    assert "The licence is not known" in card(exported)
    assert "Its first model was made from nothing." in card(exported)


def test_the_program_with_transformers_writes_what_the_agent_writes(
    exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(exported.parent)
    with_transformers, with_vllm = programs(card(exported))
    printed, names = io.StringIO(), dict[str, object]()
    with contextlib.redirect_stdout(printed):
        exec(compile(with_transformers, "card", "exec"), names)
    agent = find_agent(exported)
    trajectory = agent.ask(QUESTION)
    prompt, turn = trajectory.segments[:2]
    assert names["ids"]["input_ids"][0].tolist() == prompt.ids  # type: ignore[index]
    assert printed.getvalue().removesuffix("\n") == turn.text
    compile(with_vllm, "card", "exec")
    (written,) = re.findall(r"^prompt = .*$", with_vllm, re.MULTILINE)
    assert written in with_transformers


def test_a_call_and_an_observation_are_shown_as_they_are(exported: Path) -> None:
    text = card(exported)
    assert "<begin_search> ... </end_search>" in text
    assert "A turn ends with `</end_search>`" in text
    assert '"\\n\\n<search_result> ", the text, and " </search_result>\\n\\n"' in text


def test_a_bare_checkpoint_has_a_card_without_figures(tmp_path: Path) -> None:
    checkpoint = write_tiny_checkpoint(tmp_path / "tiny", "qwen2")
    assert status("export", checkpoint, "--out", tmp_path / "out") == 0
    text = card(tmp_path / "out")
    assert "Figures" not in text
    assert "How it acts" not in text
    assert "Which model it began as is not known here." in text
    compile(programs(text)[0], "card", "exec")


def test_an_export_of_an_export_says_what_it_knows(exported: Path, tmp_path: Path) -> None:
    assert status("export", exported, "--out", tmp_path / "again") == 0
    text = card(tmp_path / "again")
    assert "How it acts" in text
    assert "## Figures" not in text
