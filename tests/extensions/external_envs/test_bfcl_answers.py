"""Answers of one turn on the Berkeley Function Calling Leaderboard, checked by its package."""

import asyncio
from typing import Any

import pytest
from bfcl_parts import (
    LIMITS,
    NEEDS_PACKAGE,
    PYTHON,
    answer_with,
    answer_with_gold,
    gold_turns,
    questions_of,
)

from auto_parts import DIALECTS
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.extensions.external_envs.bfcl.environment import BfclEnvironment
from fieldcraft.extensions.external_envs.bfcl.prompts import ToolConversation
from fieldcraft.extensions.external_envs.bfcl.questions import (
    MULTI_TURN_CATEGORIES,
    SINGLE_TURN_CATEGORIES,
)
from fieldcraft.types import Author, CallOutcome, Status, ToolCall, UserError

pytestmark = [pytest.mark.long, NEEDS_PACKAGE]
# Questions whose checker accepts no answer: two want values of several types in a list of Java, the
# gold answers of the others lack a required argument, or have one that the function has not.
WITHOUT_ANSWER = {
    *("simple_java_36", "simple_java_65", "live_simple_106-63-0", "live_simple_112-68-0"),
    *("live_multiple_862-181-3", "live_multiple_964-207-0"),
}
AREA = ToolCall("calculate_triangle_area", {"base": 10, "height": 5, "unit": "units"})


@pytest.mark.slow
@pytest.mark.parametrize("category", [*SINGLE_TURN_CATEGORIES, *MULTI_TURN_CATEGORIES])
def test_all_gold_answers_are_right(category: str) -> None:
    done = answer_with_gold(category, "Kimi K2 Thinking")  # a format with types
    wrong = {t.task.id for t in done if t.rewards != {"environment": 1.0}}
    assert wrong == {t.task.id for t in done} & WITHOUT_ANSWER


@pytest.mark.parametrize("family", ["Kimi K2 Thinking", "Mistral 7B"])
@pytest.mark.parametrize("category", ["simple_javascript", "parallel_multiple", "live_relevance"])
def test_gold_answers_are_right_in_other_formats(category: str, family: str) -> None:
    ids = [question.id for question in questions_of(category)]
    answers = dict(zip(ids[:4], gold_turns(category), strict=False))
    done, _ = answer_with(category, answers, family)
    assert [t.rewards["environment"] for t in done] == [1.0] * 4


def test_calls_of_one_turn_are_the_answer() -> None:
    [done], engine = answer_with("simple_python", {"simple_python_0": [[AREA]]})
    assert done.rewards == {"environment": 1.0}
    assert (done.status, done.well_formed) == (Status.ANSWERED, True)
    assert [(call.tool, call.outcome) for call in done.calls] == [(AREA.tool, CallOutcome.OK)]
    assert done.calls[0].arguments == AREA.arguments  # numbers, in a format without types
    assert [segment.author for segment in done.segments] == [Author.PROMPT, Author.POLICY]
    assert "Find the area of a triangle with a base of 10 units" in engine.prompts[0]
    assert "checker" not in done.task.meta


@pytest.mark.parametrize(
    ("turn", "reason"),
    [
        ("It is 25.", "Wrong number of functions"),
        ([AREA, AREA], "Wrong number of functions"),
        ([ToolCall(AREA.tool, {"base": 10, "height": 6, "unit": "units"})], "Invalid value"),
        ([ToolCall(AREA.tool, {"base": "10", "height": 5})], ""),
        ([ToolCall(AREA.tool, {"base": 10})], "Missing required parameter"),
        ([ToolCall(AREA.tool, AREA.arguments | {"side": 1})], "Unexpected parameter"),
        ([ToolCall("area", AREA.arguments)], "Function name"),
        ("<tool_call>\n<function=calculate", "cannot be read"),
    ],
)
def test_a_wrong_answer_is_wrong(turn: Any, reason: str) -> None:
    [done], _ = answer_with("simple_python", {"simple_python_0": [turn]})
    if reason:
        assert done.rewards == {"environment": 0.0}
        assert reason in done.task.meta["checker"]
    else:  # the format has no types, so the text "10" is a number by the schema
        assert done.rewards == {"environment": 1.0}


def test_the_answer_of_another_question_is_wrong() -> None:
    ids = [question.id for question in questions_of("multiple")][:6]
    turns = gold_turns("multiple")[:6]
    done, _ = answer_with("multiple", dict(zip(ids, turns[1:] + turns[:1], strict=True)))
    assert [t.rewards["environment"] for t in done] == [0.0] * 6


def test_relevance_is_whether_a_function_is_called() -> None:
    malformed = "<tool_call>\n<function=find"
    for category, (with_call, without) in {
        "irrelevance": (0.0, 1.0), "live_relevance": (1.0, 0.0)
    }.items():  # fmt: skip
        question = questions_of(category)[0]
        call = ToolCall(question.tools[0]["function"]["name"], {})
        verdicts = [
            answer_with(category, {question.id: [turn]})[0][0].rewards["environment"]
            for turn in ([call], "I cannot help.", malformed)
        ]
        assert verdicts == [with_call, without, without]  # as in the package


def test_a_function_with_dots_is_offered_with_underscores() -> None:
    question = next(q for q in questions_of("multiple") if "_" in q.tools[0]["function"]["name"])
    place = [q.id for q in questions_of("multiple")].index(question.id)
    [[call]] = gold_turns("multiple")[place]
    assert isinstance(call, ToolCall)
    assert "." not in str([tool["function"]["name"] for tool in question.tools])
    [done], engine = answer_with("multiple", {question.id: [[call]]})
    assert f'"name": "{call.tool}"' in engine.prompts[0]
    assert done.rewards["environment"] == 1.0
    dotted = ToolCall(call.tool.replace("_", ".", 1), call.arguments)
    [done], _ = answer_with("multiple", {question.id: [[dotted]]})
    assert done.rewards["environment"] == 0.0


def test_schemas_are_json_schemas() -> None:
    """Java and JavaScript have texts, as the package offers them."""
    found: set[str] = set()

    def collect(schema: Any) -> None:
        if isinstance(schema, dict):
            found.add(str(schema.get("type", "string")))
            for value in (*schema.get("properties", {}).values(), schema.get("items")):
                collect(value)

    for category in SINGLE_TURN_CATEGORIES:
        for question in questions_of(category):
            for tool in question.tools:
                assert tool["type"] == "function"
                collect(tool["function"]["parameters"])
    assert found <= {"object", "array", "string", "integer", "number", "boolean"}
    properties = questions_of("simple_java")[6].tools[0]["function"]["parameters"]["properties"]
    assert {value["type"] for value in properties.values()} == {"string"}


def test_a_prompt_without_room_is_wrong_and_a_cut_answer_is_judged_as_it_is() -> None:
    small = BudgetConfig(max_context_tokens=64)
    [done], _ = answer_with("irrelevance", {"irrelevance_0": ["No."]}, budget=small)
    assert (done.rewards, done.status) == ({"environment": 0.0}, Status.TRUNCATED)
    assert done.task.meta["checker"] == "the prompt left no room for an answer"
    [done], _ = answer_with("irrelevance", {"irrelevance_0": ["No."]})
    assert done.rewards == {"environment": 1.0}


def test_the_last_tasks_are_held_out() -> None:
    train, heldout = BfclEnvironment(["live_parallel"], PYTHON).tasks(4)
    assert (len(train), len(heldout)) == (12, 4)
    assert heldout[0].meta == {"type": "live_parallel"}
    assert BfclEnvironment(["live_parallel"], PYTHON).source.startswith("bfcl-eval 20")


def test_a_task_of_another_category_is_refused() -> None:
    with pytest.raises(UserError, match="does not belong to these categories"):
        answer_with("live_parallel", {"simple_python_0": [[AREA]]})


def test_a_worker_that_exits_is_started_again() -> None:
    environment = BfclEnvironment(["live_parallel"], PYTHON)

    async def restart() -> Any:
        async with environment.start(DIALECTS["Qwen3-Coder"], LIMITS) as opened:
            runner: Any = opened
            await runner.context.worker.close()
            return await runner.context.ask_worker(
                {"check": questions_of("live_parallel")[0].id, "calls": []}
            )

    assert asyncio.run(restart())["valid"] is False


def test_a_defect_of_one_question_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chat template may refuse the texts of a question."""
    encode = ToolConversation.encode_start

    def refuse(self: ToolConversation, messages: Any, tools: Any) -> list[int]:
        if "triangle" in messages[-1]["content"]:
            raise UserError("the description of a tool has a special token.")
        return encode(self, messages, tools)

    monkeypatch.setattr(ToolConversation, "encode_start", refuse)
    answers: dict[str, Any] = {"simple_python_0": [[AREA]], "simple_python_1": ["?"]}
    first, second = answer_with("simple_python", answers)[0]
    assert (first.status, first.rewards) == (Status.ERROR, {})
    assert "special token" in first.error
    assert second.rewards == {"environment": 0.0}
