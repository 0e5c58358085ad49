"""Several calls in one turn of the dialect hermes: order, delimiters, budgets, simulators."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from checkpoints import tiny_tokenizer
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects import make_dialect
from fieldcraft.engine.scripted import ScriptedEngine
from fieldcraft.environments.simulators import PolicySimulator
from fieldcraft.environments.tool_environment import ToolEnvironment
from fieldcraft.environments.tool_session import LIMIT_REACHED_MESSAGE
from fieldcraft.environments.turns import Policy
from fieldcraft.extensions.search.workflows import rag
from fieldcraft.types import Author, CallOutcome, Status, Task, Trajectory
from training_parts import FixedTool, never

TOKENIZER = tiny_tokenizer()
END = "<|im_end|>"
TASK = Task("t", "Where was the director born?", ("Northport",))


def env(answer: Callable[[str], str] = "found {}".format, **budget: int) -> ToolEnvironment:
    return ToolEnvironment(
        make_dialect("hermes", TOKENIZER, ""), [FixedTool(answer)], BudgetConfig(**budget)
    )


def run_scripted(
    turns: Sequence[str], where: ToolEnvironment, simulated: bool = False
) -> Trajectory:
    policy = Policy(engine=ScriptedEngine(TOKENIZER, turns))
    simulator = PolicySimulator(policy) if simulated else None
    return asyncio.run(replace(where, simulator=simulator).run(TASK, policy, "key"))


def texts(trajectory: Trajectory) -> list[tuple[Author, str]]:
    return [(segment.author, segment.text) for segment in trajectory.segments]


# Format of a tool message in the template of the tests.
OPENED = "<|im_start|>user\n<tool_response>\n"
CLOSED = f"\n</tool_response>{END}\n"


def call(query: str) -> str:
    arguments = f'{{"query": "{query}"}}'
    return f'<tool_call>\n{{"name": "search", "arguments": {arguments}}}\n</tool_call>'


def test_several_calls_are_answered_each_in_its_place() -> None:
    where = env(max_calls=3)
    malformed = "<tool_call>\n{\n</tool_call>"
    turn = "\n".join([call("a"), malformed, call("b"), call("c")])
    found = run_scripted([turn, "\\boxed{Northport}"], where)
    assert [c.outcome for c in found.calls] == [
        CallOutcome.OK,
        CallOutcome.MALFORMED,
        CallOutcome.OK,
        CallOutcome.REFUSED,
    ]
    assert texts(found)[1:] == [
        (Author.POLICY, turn + END),  # the policy writes the end of its turn itself
        (Author.TOOL, f"\n{OPENED}found a{CLOSED}{OPENED}"),
        (Author.TOOL, f"{found.calls[1].observation}{CLOSED}{OPENED}"),
        (Author.TOOL, f"found b{CLOSED}{OPENED}"),
        (Author.TOOL, f"{LIMIT_REACHED_MESSAGE}{CLOSED}<|im_start|>assistant\n"),
        (Author.POLICY, "\\boxed{Northport}" + END),
    ]
    assert found.segments[1].ids[-1] == TOKENIZER.eos_token_id
    assert TOKENIZER.decode(found.ids) == "".join(text for _, text in texts(found))
    assert found.well_formed is False  # one call is malformed
    assert found.status is Status.ANSWERED


def test_a_rollout_with_several_calls_has_the_ids_of_the_chat_template() -> None:
    where = env()
    turn = f"{call('a')}\n{call('b')}"
    found = run_scripted([turn, "\\boxed{Northport}"], where)
    made = [{"function": {"name": "search", "arguments": {"query": q}}} for q in "ab"]
    messages = [
        {"role": "user", "content": TASK.question},
        {"role": "assistant", "content": "", "tool_calls": made},
        {"role": "tool", "content": "found a"},
        {"role": "tool", "content": "found b"},
    ]
    rendered = TOKENIZER.apply_chat_template(
        messages, tools=where.schemas, add_generation_prompt=True, return_dict=False
    )
    assert found.ids[: len(rendered)] == rendered
    assert TOKENIZER.decode(found.ids[len(rendered) :]) == "\\boxed{Northport}" + END
    assert found.well_formed


def test_several_simulated_observations_stand_each_in_its_frame() -> None:
    where = env(never, max_calls=2)
    turn = "\n".join([call("a"), call("b"), call("c")])
    dreams = ["Ada\n</tool_response> and more", "Bo"]
    found = run_scripted([turn, *dreams, "\\boxed{Northport}"], where, simulated=True)
    assert texts(found)[2:] == [
        (Author.SIMULATOR, f"\n{OPENED}"),
        (Author.SIMULATOR, "Ada\n</tool_response>"),
        (Author.SIMULATOR, f"{END}\n{OPENED}"),
        (Author.SIMULATOR, f"Bo{END}"),  # not closed
        (Author.SIMULATOR, f"{CLOSED}{OPENED}"),
        (Author.TOOL, f"{LIMIT_REACHED_MESSAGE}{CLOSED}<|im_start|>assistant\n"),
        (Author.POLICY, "\\boxed{Northport}" + END),
    ]
    assert [(c.observation, c.outcome, c.simulated) for c in found.calls] == [
        ("Ada", CallOutcome.OK, True),
        (f"Bo{END}", CallOutcome.FAILED, True),
        (LIMIT_REACHED_MESSAGE, CallOutcome.REFUSED, False),
    ]


def test_code_that_acts_before_the_model_spoke_ends_the_turn_itself() -> None:
    """A workflow searches first, so the turn that the prompt opened must be closed."""
    policy = Policy(engine=ScriptedEngine(TOKENIZER, ["\\boxed{Northport}"]))
    found = asyncio.run(rag(TASK, policy, env(), "key"))
    assert texts(found)[1:] == [
        (Author.TOOL, END),
        (Author.TOOL, f"\n{OPENED}found {TASK.question}{CLOSED}<|im_start|>assistant\n"),
        (Author.POLICY, "\\boxed{Northport}" + END),
    ]
    assert found.answer == "Northport"
