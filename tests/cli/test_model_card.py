"""The card of an exported model states the known facts, and its program runs."""

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from checkpoints import CHAT_TEMPLATE, write_tiny_checkpoint
from cli_parts import status
from fieldcraft.config.recipe import Recipe
from fieldcraft.recipes.exported import write_agent_settings
from fieldcraft.records.metrics import METRICS, Column, Metric
from fieldcraft.runs.agent import find_agent
from fieldcraft.runs.dialects import load_dialect
from fieldcraft.runs.export import EXAMPLE_QUESTION
from fieldcraft.runs.folder import find_run


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
    assert "F1,\nand tool calls per question, on held-out questions." in text
    assert "workflow" not in text
    lines = re.findall(r"^\| `(\w+)` \| (\w+) \| (\d+) \| `(.*)` \|$", text, re.MULTILINE)
    assert [line[:3] for line in lines] == [
        (name, "sft" if name != "rl2" else "rl", str(len(rows)))
        for name, rows in ((n, _rows(done, n)) for n in ("base", "sft2", "rl2"))
    ]
    assert "train_on" not in lines[0][3]  # facts that the recipe lacks are not listed


def test_a_metric_is_declared_to_be_in_it(
    done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    column = Column("card", header="answered", legend="the share of answers")
    metric = Metric("answered_rate", columns=(column,))
    monkeypatch.setitem(METRICS, metric.key, metric)
    assert status("export", done, "--out", tmp_path / "out") == 0
    text, report = card(tmp_path / "out"), find_run(done).read_report()
    assert "F1, tool calls per question,\nand the share of answers, on held-out" in text
    assert (
        "| after | questions | exact match | F1 | calls | answered |\n|---|---|---|---|---|---|\n"
        in text
    )
    rate = report["evals"]["rl2"]["answered_rate"]
    assert re.search(rf"^\| `rl2` .* \| {rate:.2f} \|$", text, re.MULTILINE)


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
    assert "The licence is unknown" in card(exported)
    assert "It was trained from a randomly initialised model." in card(exported)


def test_the_program_with_transformers_writes_what_the_agent_writes(
    exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(exported.parent)
    with_transformers, with_vllm = programs(card(exported))
    printed, names = io.StringIO(), dict[str, object]()
    with contextlib.redirect_stdout(printed):
        exec(compile(with_transformers, "card", "exec"), names)
    agent = find_agent(exported)
    trajectory = agent.ask(EXAMPLE_QUESTION)
    prompt, turn = trajectory.segments[:2]
    assert names["prompt"] == prompt.ids
    assert printed.getvalue().removesuffix("\n") == turn.text
    compile(with_vllm, "card", "exec")
    (written,) = re.findall(r"^prompt = \[.*?^\]$", with_vllm, re.MULTILINE | re.DOTALL)
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
    assert "Results" not in text
    assert "How it acts" not in text
    assert "The model that it was trained from is unknown." in text
    compile(programs(text)[0], "card", "exec")


def test_an_export_of_an_export_says_what_it_knows(exported: Path, tmp_path: Path) -> None:
    assert status("export", exported, "--out", tmp_path / "again") == 0
    text = card(tmp_path / "again")
    assert "How it acts" in text
    assert "## Results" not in text


def merging_tokenizer(chat_template: str | None) -> PreTrainedTokenizerFast:
    """Return a tokenizer that merges a question mark with the following line break, like the
    tokenizers of Qwen and Llama 3."""
    mark, newline, space = "?", "Ċ", "Ġ"  # as byte-level tokenizers write bytes
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    words = [*special, *alphabet, mark + newline, space + "W"]
    merges = [(mark, newline), (space, "W")]
    backend = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r" ?[^\s?]+|\?+\n*|\s"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(special)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", chat_template=chat_template
    )


TEMPLATE = CHAT_TEMPLATE.replace("%(prefill)s", "")
BASE = ("autocoa", "otc", "search-r1", "toolrl")  # dialects that need no chat template


@pytest.mark.parametrize(
    ("dialect", "template"),
    [*((d, None) for d in BASE), *((d, TEMPLATE) for d in (*BASE, "hermes"))],
)
def test_the_program_sends_the_ids_of_training(
    dialect: str, template: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No token spans the question and the text around it, regardless of the tokenizer's merges."""
    tokenizer = merging_tokenizer(template)
    write_tiny_checkpoint(tmp_path / "tiny", "qwen2", tokenizer=tokenizer)
    merged = tokenizer.encode(f"{EXAMPLE_QUESTION}\n")
    assert merged != [
        *tokenizer.encode(EXAMPLE_QUESTION),
        *tokenizer.encode("\n"),
    ]  # merging is possible
    recipe = Recipe(name="mine", dialect=dialect, stages={}, tools=())
    write_agent_settings(tmp_path / "tiny", recipe, None, trained_with_tools=True)
    assert status("export", tmp_path / "tiny", "--out", tmp_path / "out", "--dtype", "float32") == 0
    monkeypatch.chdir(tmp_path)
    for program, end in zip(programs(card(tmp_path / "out")), ("ids =", "reply ="), strict=True):
        names = dict[str, Any]()
        program = program.replace("from openai import OpenAI\n", "")
        exec(compile(program.partition(end)[0], "card", "exec"), names)
        expected = load_dialect(recipe, tmp_path / "out").encode_prompt(EXAMPLE_QUESTION, [])
        assert names["prompt"] == expected
