"""fieldcraft: train language models that decide for themselves when to think, act and answer.

    import fieldcraft as fc

    agent = fc.load("my-model", dialect="hermes", tools=[population])
    rl = fc.Rl(steps=200, rewards={"em": 1.0}, optim=fc.Optim(lr=1e-6))
    agent = agent.train("questions.jsonl", {"rl": rl}, out="runs/population")
    print(agent.ask("How many people live in Turin?").answer)

Names are imported on first use, so that `import fieldcraft` loads no heavy dependency.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fieldcraft.version import __version__

if TYPE_CHECKING:
    from fieldcraft.config.distil import Distil
    from fieldcraft.config.rl import Rl
    from fieldcraft.config.sections import Optim
    from fieldcraft.config.stages import Contrastive, Sft, Stage
    from fieldcraft.data.tasks import read_tasks
    from fieldcraft.data.world import World
    from fieldcraft.dialects.base import BaseDialect
    from fieldcraft.records.events import EarlyStop, StepCompleted
    from fieldcraft.rewards.answers import StatelessReward
    from fieldcraft.runs.agent import Agent, load
    from fieldcraft.runs.run_comparison import compare
    from fieldcraft.tools.base import tool
    from fieldcraft.train.stages.base import TrainingStage
    from fieldcraft.types import Task, ToolError, ToolUnavailableError, Trajectory, UserError

_MODULES = {
    "Agent": "fieldcraft.runs.agent",
    "BaseDialect": "fieldcraft.dialects.base",
    "Contrastive": "fieldcraft.config.stages",
    "Distil": "fieldcraft.config.distil",
    "EarlyStop": "fieldcraft.records.events",
    "Optim": "fieldcraft.config.sections",
    "Rl": "fieldcraft.config.rl",
    "Sft": "fieldcraft.config.stages",
    "Stage": "fieldcraft.config.stages",
    "StatelessReward": "fieldcraft.rewards.answers",
    "StepCompleted": "fieldcraft.records.events",
    "Task": "fieldcraft.types",
    "ToolError": "fieldcraft.types",
    "ToolUnavailableError": "fieldcraft.types",
    "TrainingStage": "fieldcraft.train.stages.base",
    "Trajectory": "fieldcraft.types",
    "UserError": "fieldcraft.types",
    "World": "fieldcraft.data.world",
    "compare": "fieldcraft.runs.run_comparison",
    "load": "fieldcraft.runs.agent",
    "read_tasks": "fieldcraft.data.tasks",
    "tool": "fieldcraft.tools.base",
}

__all__ = [
    "Agent",
    "BaseDialect",
    "Contrastive",
    "Distil",
    "EarlyStop",
    "Optim",
    "Rl",
    "Sft",
    "Stage",
    "StatelessReward",
    "StepCompleted",
    "Task",
    "ToolError",
    "ToolUnavailableError",
    "TrainingStage",
    "Trajectory",
    "UserError",
    "World",
    "__version__",
    "compare",
    "load",
    "read_tasks",
    "tool",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'fieldcraft' has no attribute '{name}'")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
