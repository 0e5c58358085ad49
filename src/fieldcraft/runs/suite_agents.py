"""An agent in the environments of the benchmarks of a suite."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from fieldcraft.config.choices import ENVIRONMENT_REWARD
from fieldcraft.config.sections import TOOL_BUDGET_KEYS, BudgetConfig
from fieldcraft.engine.sizes import get_max_positions
from fieldcraft.evaluation.benchmarks import Benchmark
from fieldcraft.runs.agent import Agent
from fieldcraft.train.model import load_config

MODEL_PARTS = ("device", "engine")


class SuiteAgent:
    """Variants of one agent: with its own tools, and in the environment of a benchmark. They share
    the loaded model, and those in environments of one name also the dialect."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self._variants: dict[str, Agent] = {}

    def find_variant(self, benchmark: Benchmark) -> Agent:
        """Return the agent that is asked the questions of a benchmark. Raises UserError for invalid
        settings."""
        if benchmark.environment is None:
            return self.agent
        environment = benchmark.environment.model_dump(mode="json")
        key = json.dumps([environment, benchmark.budget], sort_keys=True, default=str)
        if key not in self._variants:
            self._variants[key] = self.agent.with_settings(
                environment=environment,
                tools=[],
                verdict_reward=ENVIRONMENT_REWARD,
                budget=self._make_budget(benchmark.budget),
            )
        return self._variants[key]

    def load_parts(self, benchmark: Benchmark) -> None:
        """Load the parts of a variant, which its copies `with_sampling` then share."""
        variant = self.find_variant(benchmark)
        if variant is not self.agent:
            _ = self.agent.engine
            _share_parts(self.agent, variant, MODEL_PARTS)
            for other in self._variants.values():
                if other.recipe.environment.name == variant.recipe.environment.name:
                    _share_parts(other, variant, ("dialect",))
        variant.load_parts()

    def _make_budget(self, changes: dict[str, Any]) -> dict[str, Any]:
        """Return the agent's budget with that of a benchmark, at most the length that the model can
        read."""
        default = BudgetConfig()
        budget = self.agent.recipe.budget.model_dump()
        budget |= {key: getattr(default, key) for key in TOOL_BUDGET_KEYS} | changes
        positions = get_max_positions(load_config(self.agent.model).get_text_config())
        if positions is not None:
            budget["max_context_tokens"] = min(budget["max_context_tokens"], positions)
        return budget


def _share_parts(source: Agent, target: Agent, parts: Collection[str]) -> None:
    vars(target).update({part: vars(source)[part] for part in parts if part in vars(source)})
