"""Compare answer rules with human verdicts.

    python bench/answers.py ../shared/data/graders/evouna_nq_human_verdicts.json
    python bench/answers.py FILE --judge-url http://127.0.0.1:8000/v1 --judge-model NAME --limit 200

FILE is EVOUNA-NQ (Wang et al. 2023, "Evaluating Open-QA Evaluation"): questions of Natural
Questions, the answers of five models, and human verdicts. Questions that its authors call improper,
missing answers, and answers without a verdict are excluded. A rule that accepts nothing has no
precision. Cohen's kappa is the agreement beyond chance agreement of two judges with these rates.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fieldcraft.data.labelled_answers import EVOUNA_MODELS, LabelledAnswer, read_labelled_answers
from fieldcraft.evaluation.agreement import Agreement, measure_grader
from fieldcraft.rewards.answers import cover_em, exact_match, f1, normalise
from fieldcraft.rewards.judge import JudgeReward
from fieldcraft.tools.chat_client import ChatClient


def read_cases(path: Path, limit: int | None = None) -> dict[str, list[LabelledAnswer]]:
    """Return the labelled answers by model, of the first `limit` usable questions."""
    answers = read_labelled_answers(path, limit)
    return {model: [a for a in answers if a.source == model] for model in EVOUNA_MODELS}


def bag_of_words(prediction: str, golds: Sequence[str]) -> bool:
    """Return whether the published code of AutoCoA counts an answer as exact, only for comparison:
    equal, or 70 % of the gold words in any order, but never if one text contains the other."""

    def passes(predicted: str, gold: str) -> bool:
        if predicted == gold:
            return True
        if not predicted or not gold or predicted in gold or gold in predicted:
            return False
        words = set(gold.split())
        return len(words & set(predicted.split())) >= 0.7 * len(words)

    return any(passes(normalise(prediction), normalise(gold)) for gold in golds)


RULES: Mapping[str, Callable[[str, Sequence[str]], bool]] = {
    "`em/squad-7`": lambda answer, golds: exact_match(answer, golds) == 1,
    "`f1/squad-7` >= 0.3": lambda answer, golds: f1(answer, golds) >= 0.3,
    "`f1/squad-7` >= 0.5": lambda answer, golds: f1(answer, golds) >= 0.5,
    "`f1/squad-7` >= 0.8": lambda answer, golds: f1(answer, golds) >= 0.8,
    "`cover_em/substring-7`": lambda answer, golds: cover_em(answer, golds) == 1,
    "70 % of the words (AutoCoA's code)": bag_of_words,
}


def format_agreement(pairs: Sequence[tuple[bool, bool]]) -> str:
    """Return accuracy, precision, recall and kappa of (accepted by the rule, by people)."""
    found = Agreement.count(pairs)
    numbers = (found.accuracy, found.precision, found.recall, found.kappa)
    return " ".join("–" if x is None else f"{x:.3f}" for x in numbers)


def format_measured(entry: Mapping[str, Any]) -> str:
    """Return the figures of `measure_grader` in the same order."""
    numbers = [entry.get(key) for key in ("accuracy", "precision", "recall", "kappa")]
    text = " ".join("–" if x is None else f"{x:.3f}" for x in numbers)
    return f"{text} ({entry['not_graded']} not judged)"


def print_row(name: str, cells: Sequence[Any]) -> None:
    print(f"| {name} | {' | '.join(map(str, cells))} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--limit", type=int, help="number of questions, from the start of the file")
    parser.add_argument("--judge-url", help="also measure the judge at this endpoint")
    parser.add_argument("--judge-model", help="name of the judge's model")
    parser.add_argument("--votes", type=int, default=3)
    parser.add_argument("--cache", type=Path, help="cache file of the judge's replies")
    options = parser.parse_args()
    cases = read_cases(options.file, options.limit)

    print("Each cell: accuracy, precision, recall, Cohen's kappa.\n")
    print_row("rule", EVOUNA_MODELS)
    print("|---" * (len(EVOUNA_MODELS) + 1) + "|")
    print_row("answers (accepted by people)", [
        f"{len(part)} ({sum(case.accepted for case in part)})" for part in cases.values()
    ])  # fmt: skip
    for name, rule in RULES.items():
        agreements = [
            format_agreement([(rule(c.answer, c.task.answers), c.accepted) for c in part])
            for part in cases.values()
        ]
        print_row(name, agreements)
    if options.judge_url:
        endpoint = ChatClient(options.judge_url, options.judge_model, cache=options.cache)
        asyncio.run(endpoint.require_available())
        judge = JudgeReward(endpoint, options.votes)
        found = asyncio.run(
            measure_grader(judge.score_trajectory, [c for part in cases.values() for c in part])
        )
        print_row(options.judge_model, [format_measured(found[model]) for model in EVOUNA_MODELS])


if __name__ == "__main__":
    main()
