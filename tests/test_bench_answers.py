"""Tests of bench/answers.py: agreement computed by hand, and a full run on a small file with a
judge."""

import json
import sys
from pathlib import Path

import pytest

from chat_server import answering, completion
from fieldcraft.tools.serving import serve_in_thread
from script_modules import load_script

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def bench():
    return load_script("bench/answers.py")


def test_the_figures_of_a_rule(bench):
    pairs = [(True, True)] * 20 + [(True, False)] * 5 + [(False, True)] * 10
    assert bench.format_agreement([*pairs, *[(False, False)] * 15]) == "0.700 0.800 0.667 0.400"
    assert bench.format_agreement([(False, True), (False, False)]) == "0.500 – 0.000 0.000"


def test_the_rule_of_the_published_code_is_what_it_is(bench):
    """The rule of the published code accepts guesses in any order and rejects a correct answer with
    one more word."""
    assert bench.bag_of_words("door girl apple next banana", ["girl next door"])
    assert not bench.bag_of_words("the film Girl Next Door", ["girl next door"])


def case(number, answer, verdict, improper=False):
    models = ("fid", "gpt35", "chatgpt", "gpt4", "newbing")
    row = {"question": f"q{number}", "golden_answer": "Oslo/Christiania", "improper": improper}
    row |= {f"answer_{m}": answer for m in models} | {f"judge_{m}": verdict for m in models}
    return row


def test_a_small_file_with_a_judge(bench, tmp_path, monkeypatch, capsys):
    rows = [case(0, "Christiania", True), case(1, "It was Oslo.", True), case(2, "Bergen", False)]
    rows += [case(3, "Oslo", None), case(4, "Oslo", True, improper=True), case(5, None, True)]
    file = tmp_path / "verdicts.json"
    file.write_text(json.dumps(rows))
    app, got = answering(completion("Verdict: correct"))
    with serve_in_thread(app) as url:
        options = ["--judge-url", f"{url}/v1", "--judge-model", "m", "--votes", "1"]
        options += ["--cache", str(tmp_path / "replies")]
        monkeypatch.setattr(sys, "argv", ["answers.py", str(file), *options])
        bench.main()
    table = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()]
    cells = {row[0]: row[1] for row in table if len(row) == 6}
    assert cells["answers (accepted by people)"] == "3 (2)"
    assert cells["`em/squad-7`"] == "0.667 1.000 0.500 0.400"
    assert cells["`cover_em/substring-7`"] == "1.000 1.000 1.000 1.000"
    # two of three accepted by people, all by the judge
    assert cells["m"] == "0.667 0.667 1.000 0.000 (0 not judged)"
    assert len(got) == 1 + 3  # the check; the same three answers of five models


def test_exact_match_hardly_ever_accepts_what_people_refuse(bench, shared):
    """Exact match also accepts 81 % of the answers that people accept: see
    docs/lab-notes/grading.md."""
    cases = bench.read_cases(shared / "data/graders/evouna_nq_human_verdicts.json")["fid"]
    em, cover = (
        bench.Agreement.count(
            [(bench.RULES[f"`{name}`"](c.answer, c.task.answers), c.accepted) for c in cases]
        )
        for name in ("em/squad-7", "cover_em/substring-7")
    )
    assert (em.n, em.both, em.grader_only) == (3019, 1691, 4)
    assert em.recall == pytest.approx(0.812, abs=5e-4)
    assert cover.recall > em.recall
