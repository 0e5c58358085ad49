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
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fieldcraft.records.reading import raise_read_errors
from fieldcraft.rewards.answers import cover_em, exact_match, f1, normalise
from fieldcraft.rewards.judge import JudgeReward
from fieldcraft.tools.chat_client import ChatClient
from fieldcraft.types import Task, Trajectory

MODELS = ("fid", "gpt35", "chatgpt", "gpt4", "newbing")


@dataclass(frozen=True)
class Case:
    """An answer of a model, and the human verdict."""

    task: Task
    answer: str
    accepted: bool


def read_cases(path: Path, limit: int | None = None) -> dict[str, list[Case]]:
    """Return the cases by model, of the first `limit` usable questions."""
    cases: dict[str, list[Case]] = {model: [] for model in MODELS}
    with raise_read_errors(path, "give the file EVOUNA-NQ"):
        rows = [row for row in json.loads(path.read_text("utf-8")) if not row["improper"]][:limit]
        for number, row in enumerate(rows):
            task = Task(str(number), row["question"], tuple(row["golden_answer"].split("/")))
            for model in MODELS:
                answer, verdict = row[f"answer_{model}"], row[f"judge_{model}"]
                if answer and verdict is not None:
                    cases[model].append(Case(task, answer, verdict))
    return cases


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
    "`em/squad-6`": lambda answer, golds: exact_match(answer, golds) == 1,
    "`f1/squad-6` >= 0.3": lambda answer, golds: f1(answer, golds) >= 0.3,
    "`f1/squad-6` >= 0.5": lambda answer, golds: f1(answer, golds) >= 0.5,
    "`f1/squad-6` >= 0.8": lambda answer, golds: f1(answer, golds) >= 0.8,
    "`cover_em/substring-6`": lambda answer, golds: cover_em(answer, golds) == 1,
    "70 % of the words (AutoCoA's code)": bag_of_words,
}


@dataclass(frozen=True)
class Agreement:
    """Confusion matrix of a rule (rows) and people (columns)."""

    both: int
    rule_only: int
    people_only: int
    neither: int

    @classmethod
    def of(cls, pairs: Sequence[tuple[bool, bool]]) -> Agreement:
        """Count pairs of (accepted by the rule, accepted by people)."""
        order = ((True, True), (True, False), (False, True), (False, False))
        return cls(*(list(pairs).count(pair) for pair in order))

    @property
    def n(self) -> int:
        return self.both + self.rule_only + self.people_only + self.neither

    @property
    def accuracy(self) -> float:
        return (self.both + self.neither) / self.n

    @property
    def precision(self) -> float | None:
        accepted = self.both + self.rule_only
        return self.both / accepted if accepted else None

    @property
    def recall(self) -> float:
        return self.both / (self.both + self.people_only)

    @property
    def kappa(self) -> float:
        """Cohen's kappa (1960): (p_o - p_e) / (1 - p_e)."""
        rule, people = self.both + self.rule_only, self.both + self.people_only
        chance = (rule * people + (self.n - rule) * (self.n - people)) / self.n**2
        return (self.accuracy - chance) / (1 - chance)

    def __str__(self) -> str:
        numbers = (self.accuracy, self.precision, self.recall, self.kappa)
        return " ".join("–" if x is None else f"{x:.3f}" for x in numbers)


async def ask_judge(judge: JudgeReward, cases: Sequence[Case]) -> tuple[Agreement, int]:
    """Return the agreement of a judge on the cases that it judged, and the number of others."""
    asked = (judge.score_trajectory(Trajectory(case.task, answer=case.answer)) for case in cases)
    said = zip(await asyncio.gather(*asked), cases, strict=True)
    graded = [(score == 1, case.accepted) for score, case in said if score is not None]
    return Agreement.of(graded), len(cases) - len(graded)


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
    print_row("rule", MODELS)
    print("|---" * (len(MODELS) + 1) + "|")
    print_row("answers (accepted by people)", [
        f"{len(part)} ({sum(case.accepted for case in part)})" for part in cases.values()
    ])  # fmt: skip
    for name, rule in RULES.items():
        agreements = [
            Agreement.of([(rule(c.answer, c.task.answers), c.accepted) for c in part])
            for part in cases.values()
        ]
        print_row(name, agreements)
    if options.judge_url:
        endpoint = ChatClient(options.judge_url, options.judge_model, cache=options.cache)
        asyncio.run(endpoint.require_available())
        judge = JudgeReward(endpoint, options.votes)
        found = [asyncio.run(ask_judge(judge, part)) for part in cases.values()]
        print_row(options.judge_model, [f"{a} ({failed} not judged)" for a, failed in found])


if __name__ == "__main__":
    main()
