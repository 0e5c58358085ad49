"""Environment `bfcl`: questions of the Berkeley Function Calling Leaderboard."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects.base import BaseDialect
from fieldcraft.environments.base import EnvironmentRunner
from fieldcraft.extensions.external_envs.bfcl.prompts import ToolConversation
from fieldcraft.extensions.external_envs.bfcl.questions import (
    SINGLE_TURN_CATEGORIES,
    WORKER_SCRIPT,
    BfclQuestion,
    describe_package,
    list_questions,
    parse_question,
    require_categories,
    resolve_interpreter,
)
from fieldcraft.extensions.external_envs.bfcl.rollouts import BfclContext
from fieldcraft.extensions.external_envs.bfcl.runner import BfclRunner
from fieldcraft.extensions.external_envs.worker_process import WorkerProcess
from fieldcraft.types import Task


class BfclEnvironment:
    """Environment whose functions are those of each question, and whose reward is the verdict of
    the checker of bfcl-eval.

    Args:
        categories: names of categories; default: all with a single turn.
        python: interpreter that has bfcl-eval; None for this one.

    Raises UserError for an unknown category.
    """

    calls_tools = True  # in the format of the dialect
    unread_keys = (
        "budget.max_calls",  # the package has its own limit
        *("budget.call_timeout_seconds", "budget.max_concurrent_calls"),
    )

    def __init__(
        self,
        categories: Sequence[str] = SINGLE_TURN_CATEGORIES,
        python: Path | None = None,
    ) -> None:
        require_categories(categories)
        self.categories, self.python = tuple(dict.fromkeys(categories)), python

    @property
    def source(self) -> str:
        """Package of the questions and checkers, with its version. Raises UserError if it is
        missing."""
        return describe_package(self.python)

    def tasks(self, heldout: int) -> tuple[Sequence[Task], Sequence[Task]]:
        """Return (training tasks, held-out tasks); the last tasks, at most half, are held out.
        Raises UserError if the package cannot be read."""
        found = [make_task(question) for question in list_questions(self.python, self.categories)]
        first = len(found) - min(len(found) // 2, heldout)
        return found[:first], found[first:]

    @asynccontextmanager
    async def start(
        self, dialect: BaseDialect, budget: BudgetConfig
    ) -> AsyncIterator[EnvironmentRunner]:
        """Start the worker. Raises UserError if this fails, and for a dialect that cannot call the
        functions of a question."""
        conversation = ToolConversation(dialect)
        conversation.require_tools()
        if not set(self.categories) <= set(SINGLE_TURN_CATEGORIES):
            conversation.encode_reply("reply")  # raises for a template that cannot continue
        interpreter = resolve_interpreter(self.python)
        with tempfile.TemporaryDirectory() as folder:
            worker = WorkerProcess(
                [interpreter, str(WORKER_SCRIPT)],
                {"categories": self.categories},
                Path(folder, "worker.log"),
            )
            opened = await worker.start()
            try:
                questions = map(parse_question, opened["questions"])
                context = BfclContext(conversation, budget, worker)
                yield BfclRunner(context, {question.id: question for question in questions})
            finally:
                await worker.close()


def make_task(question: BfclQuestion) -> Task:
    """Return the task of a question. Verdicts on one memory are correlated."""
    cluster = {"cluster": question.scenario} if question.scenario else {}
    return Task(question.id, question.text, (), {"type": question.category, **cluster})
