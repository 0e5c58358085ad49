"""Cost of a rollout: prices of its tools and of its policy tokens."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from transformers import PreTrainedTokenizerFast

from checkpoints import tiny_tokenizer
from fieldcraft.config.choices import ToolConfig
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects import make_dialect
from fieldcraft.engine.scripted import ScriptedEngine
from fieldcraft.environments.simulators import PolicySimulator
from fieldcraft.environments.tool_environment import ToolEnvironment, run_rollout
from fieldcraft.environments.turns import Policy
from fieldcraft.records.costs import compute_acting_cost, count_policy_tokens, sum_call_costs
from fieldcraft.tools.factory import apply_tool_config
from fieldcraft.types import AnyTool, CallOutcome, Task, Trajectory
from training_parts import FixedTool

TOKENIZER: PreTrainedTokenizerFast = tiny_tokenizer()
DIALECT = make_dialect("autocoa", TOKENIZER, "")
TASK = Task("t", "Where was the director born?", ("Northport",))
SEARCH = "<begin_search> director </end_search>"
ANSWER = "So there.\n</think>\n\n\\boxed{Northport}"
TOOL: AnyTool = FixedTool("found {}".format)


def run_scripted(
    turns: Sequence[str], where: ToolEnvironment, simulated: bool = False
) -> Trajectory:
    policy = Policy(engine=ScriptedEngine(TOKENIZER, turns))
    simulator = PolicySimulator(policy) if simulated else None
    return asyncio.run(replace(where, simulator=simulator).run(TASK, policy, "key"))


def test_a_rollout_is_priced_by_its_tools_and_its_budget() -> None:
    """A call costs the price of its tool, simulated or not, and a refused call costs nothing."""
    priced = apply_tool_config(TOOL, ToolConfig(name="search", cost=2.5))
    where = ToolEnvironment(DIALECT, [priced], BudgetConfig(max_calls=1, token_cost=1000.0))
    for simulated in (False, True):
        written = [SEARCH, "result </search_result>"] if simulated else [SEARCH]
        found = run_scripted([*written, SEARCH, ANSWER], where, simulated)
        assert [call.outcome for call in found.calls] == [CallOutcome.OK, CallOutcome.REFUSED]
        assert found.calls[0].simulated == simulated
        assert sum_call_costs(found) == 2.5
        assert compute_acting_cost(found) == 2.5 + count_policy_tokens(found)


def test_its_task_has_the_least_cost_then() -> None:
    priced = apply_tool_config(TOOL, ToolConfig(name="search", cost=2.5))
    known = Task("t", "Where?", ("Northport",), {"calls_optimal": 2})
    policy = Policy(engine=ScriptedEngine(TOKENIZER, [ANSWER]))
    for tool, meta in ((priced, {"calls_optimal": 2, "cost_optimal": 5.0}), (TOOL, known.meta)):
        found = asyncio.run(run_rollout(known, policy, ToolEnvironment(DIALECT, [tool]), "key"))
        assert found.task.meta == meta


def test_without_prices_a_cost_is_a_number_of_calls() -> None:
    found = run_scripted([SEARCH, SEARCH, ANSWER], ToolEnvironment(DIALECT, [TOOL]))
    assert compute_acting_cost(found) == found.num_executed_calls == 2
    assert found.task is TASK
