"""Check of questions that are asked with only some of the tools, before a run."""

from types import SimpleNamespace

import pytest

from checkpoints import tiny_tokenizer
from fieldcraft.dialects import make_dialect
from fieldcraft.runs.dialect_choice import DialectChoice
from fieldcraft.runs.question_checks import check_dialect
from fieldcraft.runs.setup import CheckReport
from fieldcraft.types import Task, UserError


def test_a_question_asked_with_a_tool_that_is_not_there() -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in ("search", "now")]
    dialect = make_dialect("hermes", tiny_tokenizer())
    setup = SimpleNamespace(
        dialect=dialect, schemas=tools, dialect_choice=DialectChoice(name="hermes")
    )
    setup.tasks = [Task("q0", "Why?", ()), Task("q1", "Why?", (), {"offered": ["now"]})]
    check_dialect(setup, CheckReport())  # type: ignore[arg-type]
    setup.tasks.append(Task("q2", "Why?", (), {"offered": ["search", "calc"]}))
    message = "'q2' offers the tool 'calc', which the recipe does not have: add it to tools"
    with pytest.raises(UserError, match=message):
        check_dialect(setup, CheckReport())  # type: ignore[arg-type]
