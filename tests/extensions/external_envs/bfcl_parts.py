"""Gold answers of the Berkeley Function Calling Leaderboard, written as calls in a dialect.

FIELDCRAFT_BFCL names the interpreter that has bfcl-eval.
"""

import ast
import asyncio
import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from auto_parts import DIALECTS
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.environments.base import isolate_failures
from fieldcraft.environments.turns import Policy
from fieldcraft.extensions.external_envs.bfcl.environment import BfclEnvironment
from fieldcraft.extensions.external_envs.bfcl.questions import BfclQuestion, list_questions
from fieldcraft.extensions.families.dialect import AutoDialect
from fieldcraft.sampling import Completion, SamplingParams, StopReason
from fieldcraft.types import Task, ToolCall, Trajectory

PYTHON = Path(os.environ.get("FIELDCRAFT_BFCL", "python-with-bfcl-eval"))
NEEDS_PACKAGE = pytest.mark.skipif(
    "FIELDCRAFT_BFCL" not in os.environ, reason="FIELDCRAFT_BFCL names no interpreter"
)
LIMITS = BudgetConfig(max_turn_tokens=40_000, max_context_tokens=2_000_000)
Turn = Sequence[ToolCall] | str
Writer = Callable[[str], Turn]  # of a turn, by the text before it


@cache
def find_data() -> Path:
    """Return the folder of the package's data."""
    program = "import bfcl_eval; print(bfcl_eval.__path__[0])"
    found = subprocess.run([PYTHON, "-c", program], capture_output=True, text=True, check=True)
    return Path(found.stdout.strip(), "data")


def read_records(*parts: str) -> list[dict[str, Any]]:
    lines = Path(find_data(), *parts).read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


@cache
def questions_of(category: str) -> tuple[BfclQuestion, ...]:
    return tuple(list_questions(PYTHON, [category]))


# -- gold answers ------------------------------------------------------------------------------


def gold_turns(category: str) -> list[list[Turn]]:
    """Return the turns that answer each question of a category: calls, or a text."""
    name = f"BFCL_v4_{category}.json"
    entries = read_records(name)
    if category.endswith("irrelevance"):
        return [["None of these functions helps."] for _ in entries]
    if category.endswith("relevance"):
        return [[[ToolCall(plain(entry["function"][0]["name"]), {})]] for entry in entries]
    answers = [answer["ground_truth"] for answer in read_records("possible_answer", name)]
    if category.startswith("multi_turn"):
        docs = {question.id: question for question in questions_of(category)}
        return [
            gold_conversation(docs[entry["id"]], turns)
            for entry, turns in zip(entries, answers, strict=True)
        ]
    return [[gold_calls(*pair, category)] for pair in zip(entries, answers, strict=True)]


def plain(name: str) -> str:
    return name.replace(".", "_")


def gold_calls(
    entry: Mapping[str, Any], answer: Sequence[Mapping[str, Any]], category: str
) -> list[ToolCall]:
    calls = []
    for [(name, options)] in (call.items() for call in answer):
        [function] = [f for f in entry["function"] if f["name"] == name][:1]
        types, required = (function["parameters"].get(k, []) for k in ("properties", "required"))
        arguments = {
            key: pick(values)
            for key, values in options.items()
            if values and (key in required or "" not in values)  # "": it may be left out
        }
        if category.endswith(("java", "javascript")):
            write = write_java if category.endswith("java") else write_javascript
            arguments = {key: write(value, types[key]) for key, value in arguments.items()}
        calls.append(ToolCall(plain(name), arguments))
    return calls


def pick(values: Sequence[Any]) -> Any:
    """Return the first accepted value. A dictionary has lists of accepted values, too."""
    value = next((value for value in values if value != ""), "")
    if isinstance(value, dict):
        return pick_keys(value)
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        return [pick_keys(item) for item in value]
    return value


def pick_keys(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: values[0] for key, values in options.items() if values and "" not in values}


def write_java(value: Any, schema: Mapping[str, Any]) -> str:
    """Write a value in Java."""
    declared, inner = schema["type"], (schema.get("items") or {}).get("type", "any")
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        # the checker keeps the quotation marks of these texts, and compares them with none
        keeps = inner == "any" or (declared, inner) == ("Array", "String")
        items = ", ".join(
            item if keeps and isinstance(item, str) else java_literal(item, inner) for item in value
        )
        if declared == "Array":
            return f"new Object[]{{{items}}}"
        return f"new ArrayList<Object>(Arrays.asList({items}))"
    if isinstance(value, dict):
        puts = " ".join(f'put("{k}", {java_literal(v, "any")});' for k, v in value.items())
        return f"new HashMap<String, Object>() {{{{ {puts} }}}}"
    return java_literal(value, declared)


def java_literal(value: Any, declared: str) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    return f"{value}{ {'long': 'L', 'float': 'f'}.get(declared, '') }"


def write_javascript(value: Any, schema: Mapping[str, Any]) -> str:
    """Write a value in JavaScript."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        pairs = ", ".join(f'"{key}": {javascript_literal(item)}' for key, item in value.items())
        return f"{{{pairs}}}"
    return javascript_literal(value)


def javascript_literal(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(javascript_literal, value))}]"
    return json.dumps(value)


def gold_conversation(question: BfclQuestion, answers: Sequence[Sequence[str]]) -> list[Turn]:
    """Return the turns of a whole conversation: the calls of each request, and a text."""
    schemas = [*question.tools, *(t for tools in question.added_tools.values() for t in tools)]
    names = {
        schema["function"]["name"]: list(schema["function"]["parameters"]["properties"])
        for schema in schemas
    }
    turns: list[Turn] = []
    for expressions in answers:
        calls = [read_call(expression, names) for expression in expressions]
        turns += [calls, "It is done."] if calls else ["I cannot do that."]
    return turns


def read_call(expression: str, names: Mapping[str, Sequence[str]]) -> ToolCall:
    """Return the call of a Python expression, whose arguments may have no names."""
    call = ast.parse(expression, mode="eval").body
    assert isinstance(call, ast.Call)
    assert isinstance(call.func, ast.Name)
    given = zip(names[call.func.id], call.args, strict=False)
    pairs = [*given, *((str(keyword.arg), keyword.value) for keyword in call.keywords)]
    return ToolCall(call.func.id, {key: ast.literal_eval(value) for key, value in pairs})


# -- rollouts ----------------------------------------------------------------------------------


class GoldEngine:
    """Engine that writes given turns, by the key of the rollout, in a dialect."""

    def __init__(self, dialect: AutoDialect, turns: Mapping[str, Sequence[Turn | Writer]]) -> None:
        self.dialect = dialect
        self.turns = {key: list(texts) for key, texts in turns.items()}
        self.prompts: list[str] = []
        self.keys: list[str] = []  # of the rollouts, in the order of their turns

    async def generate(
        self, ids: Sequence[int], sampling: SamplingParams, session: str
    ) -> Completion:
        self.prompts.append(self.dialect.tokenizer.decode(ids))
        key = session.partition("#")[0]
        self.keys.append(key)
        turn = self.turns[key].pop(0)
        if callable(turn):
            turn = turn(self.prompts[-1])
        text = turn if isinstance(turn, str) else self.dialect.render_calls(turn)
        ids = self.dialect.encode_turn(text)
        written = ids[: sampling.max_tokens]
        reason = StopReason.EOS if written == ids else StopReason.LENGTH
        decoded = self.dialect.tokenizer.decode(written)
        return Completion(written, [0.0] * len(written), decoded, reason)

    def release(self, session: str) -> None: ...


def answer_with(
    category: str,
    answers: Mapping[str, Sequence[Turn]],
    family: str = "Qwen3-Coder",
    budget: BudgetConfig = LIMITS,
) -> tuple[list[Trajectory], GoldEngine]:
    """Return the rollouts on questions of a category, by id, that a policy answers with turns."""
    engine = GoldEngine(DIALECTS[family], answers)
    policy: Any = Policy(engine=engine)  # type: ignore[arg-type]
    environment = BfclEnvironment([category], PYTHON)

    async def roll_out() -> list[Trajectory]:
        async with isolate_failures(environment, DIALECTS[family], budget) as opened:
            return [await opened.run(Task(key, "?", ()), policy, key) for key in answers]

    return asyncio.run(roll_out()), engine


def answer_with_gold(category: str, family: str) -> list[Trajectory]:
    """Return the rollouts of a policy that knows the gold answers of a category."""
    turns = gold_turns(category)
    ids = [question.id for question in questions_of(category)]
    return answer_with(category, dict(zip(ids, turns, strict=True)), family)[0]
