"""What a rollout costs: prices of its tools and of the tokens of its policy."""

import asyncio
from collections.abc import Sequence

from transformers import PreTrainedTokenizerFast

from checkpoints import tiny_tokenizer
from fieldcraft.config.choices import ToolChoice
from fieldcraft.config.sections import Limits
from fieldcraft.dialects import get_dialect
from fieldcraft.engine.scripted import ScriptedEngine
from fieldcraft.envs.environment import ToolEnvironment
from fieldcraft.records.costs import acting_cost, call_cost, policy_tokens
from fieldcraft.rollout.loop import Policy, rollout
from fieldcraft.rollout.simulators import PolicySimulator
from fieldcraft.tools.named import as_chosen
from fieldcraft.types import AnyTool, Outcome, Task, Trajectory
from training_parts import FixedTool

TOKENIZER: PreTrainedTokenizerFast = tiny_tokenizer()
DIALECT = get_dialect("autocoa", TOKENIZER, "")
TASK = Task("t", "Where was the director born?", ("Northport",))
SEARCH = "<begin_search> director </end_search>"
ANSWER = "So there.\n</think>\n\n\\boxed{Northport}"
TOOL: AnyTool = FixedTool("found {}".format)


def play(turns: Sequence[str], where: ToolEnvironment, simulated: bool = False) -> Trajectory:
    policy = Policy(engine=ScriptedEngine(TOKENIZER, turns))
    simulator = PolicySimulator(policy) if simulated else None
    return asyncio.run(rollout(TASK, policy, where, "key", simulator))


def test_a_rollout_is_priced_by_its_tools_and_its_budget() -> None:
    """Simulated or not, a call costs what the tool costs; one that was refused costs nothing."""
    priced = as_chosen(TOOL, ToolChoice(name="search", cost=2.5))
    where = ToolEnvironment(DIALECT, [priced], Limits(max_calls=1, token_cost=1000.0))
    for simulated in (False, True):
        written = [SEARCH, "result </search_result>"] if simulated else [SEARCH]
        found = play([*written, SEARCH, ANSWER], where, simulated)
        assert [call.outcome for call in found.calls] == [Outcome.OK, Outcome.REFUSED]
        assert found.calls[0].simulated == simulated
        assert call_cost(found) == 2.5
        assert acting_cost(found) == 2.5 + policy_tokens(found)


def test_its_task_has_the_least_cost_then() -> None:
    priced = as_chosen(TOOL, ToolChoice(name="search", cost=2.5))
    known = Task("t", "Where?", ("Northport",), {"calls_optimal": 2})
    policy = Policy(engine=ScriptedEngine(TOKENIZER, [ANSWER]))
    for tool, meta in ((priced, {"calls_optimal": 2, "cost_optimal": 5.0}), (TOOL, known.meta)):
        found = asyncio.run(rollout(known, policy, ToolEnvironment(DIALECT, [tool]), "key"))
        assert found.task.meta == meta


def test_without_prices_a_cost_is_a_number_of_calls() -> None:
    found = play([SEARCH, SEARCH, ANSWER], ToolEnvironment(DIALECT, [TOOL]))
    assert acting_cost(found) == found.executed_calls == 2
    assert found.task is TASK
