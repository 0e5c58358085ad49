"""Objects of the checks before a run: device, questions, tools with notes, judge and model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fieldcraft.config.choices import ToolConfig
from fieldcraft.config.components import MCP_TOOL
from fieldcraft.config.recipe import Recipe, uses_tools
from fieldcraft.config.sampling import describe_sample_counts
from fieldcraft.dialects import BaseDialect
from fieldcraft.dialects.chat_template import shows_date
from fieldcraft.dialects.encoding import DemonstrationEncoder
from fieldcraft.engine.attention import require_plain_attention
from fieldcraft.environments.tool_environment import check_duplicate_names
from fieldcraft.rewards.answers import StatelessReward
from fieldcraft.rewards.grading import JUDGE
from fieldcraft.rewards.judge import JudgeReward
from fieldcraft.runs.build import (
    make_prompt_only_tools,
    make_verdict_reward,
    open_judge,
)
from fieldcraft.runs.dialect_choice import DialectChoice
from fieldcraft.runs.dialects import choose_dialect, load_dialect
from fieldcraft.runs.event_loop import run_async
from fieldcraft.runs.first_model import write_first_model
from fieldcraft.runs.inputs import make_data_source
from fieldcraft.runs.search import SEARCH_TOOL, find_search
from fieldcraft.runs.sources import DataSource
from fieldcraft.train.lora import LoraAdapter
from fieldcraft.train.model import choose_device, describe_aux_losses, load_model, make_empty_model
from fieldcraft.train.train_mode import describe_dropout
from fieldcraft.train.twin import MAX_TWIN_PARAMETERS, require_forward_parity, require_twin_parity
from fieldcraft.types import AnyTool, Task, Trajectory, UserError

# Slow or costly graders, so that grading demonstrations is left to the run.
EXPENSIVE_GRADERS = (JUDGE, "unit_tests", "stdin_tests")
Check = Callable[[list[str]], Iterator[str]]  # adds notes to the list, and yields errors
NamedCheck = tuple[str, Check]


class PlaceholderReward(StatelessReward):
    """Placeholder for a slow or costly grader that is not queried. It gives every answer the same
    score, which counts as correct, or None for no verdict."""

    def __init__(self, name: str, score: float | None = 1.0) -> None:
        self.name = name
        self.score = score

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        return [self.score] * len(group)


def list_deferred_graders(recipe: Recipe) -> list[str]:
    """Return the graders that are only queried during the run. A missing judge grades nothing; if
    it were to grade everything, the recipe is rejected."""
    has_judge = recipe.judge.url is not None or recipe.verdict_reward == JUDGE
    return [name for name in EXPENSIVE_GRADERS if name != JUDGE or has_judge]


@dataclass
class CheckContext:
    """Objects of the checks, collected step by step. Each step notes its findings and yields or
    raises errors."""

    recipe: Recipe
    draft: Path
    device: torch.device = field(init=False)
    data_source: DataSource = field(init=False)
    tasks: list[Task] = field(init=False)  # for training and testing
    schemas: list[dict[str, Any]] = field(init=False)  # of the tools
    judge: JudgeReward | None = field(init=False)
    dialect_choice: DialectChoice = field(init=False)
    dialect: BaseDialect = field(init=False)
    meta_model: Any = field(init=False)  # model without weights
    config: Any = field(init=False)  # transformers' text configuration
    parameters: int = field(init=False)
    trainable_parameters: int = field(init=False)  # of the full model, or of an adapter

    def load_device(self, notes: list[str]) -> Iterator[str]:
        uses_cluster = self.recipe.cluster.trains_and_samples  # of processes with separate devices
        self.device = choose_device("cpu" if uses_cluster else self.recipe.device)
        notes.append(str(self.device))
        yield from ()

    def load_questions(self, notes: list[str]) -> Iterator[str]:
        self.data_source = make_data_source(self.recipe, is_preview=True)
        self.data_source.deferred_graders = list_deferred_graders(self.recipe)
        self.data_source.verdict_reward = make_verdict_reward(
            self.recipe, *map(PlaceholderReward, self.data_source.deferred_graders)
        )
        train, test = self.data_source.train_tasks(), self.data_source.evaluation_tasks()
        notes += [f"{len(train)} to train", f"{len(test)} to test", *self.data_source.warnings()]
        notes += describe_sample_counts(self.recipe.evaluation.samples, test)
        if not test or not (train or self.recipe.evaluation.tasks):
            raise UserError(
                f"there are {len(train)} questions to train on and {len(test)} to test on: give"
                " tasks=FILE more of them, or the world a split that has some."
            )
        self.tasks = train + test
        heldout = {t.question for t in test if t.meta["split"] == "heldout"}
        overlap = heldout & {t.question for t in train}
        if overlap and not self.data_source.may_repeat_questions:
            yield (
                f"{len(overlap)} questions are both trained and held out, such as '{min(overlap)}':"
                " remove repeated questions."
            )

    def load_tools(self, notes: list[str]) -> Iterator[str]:
        """Open the tools one by one, so that an error in one does not hide others. Tools that the
        run does not use stay closed."""
        self.schemas = []
        for tool_config in self.recipe.tools if uses_tools(self.recipe) else ():
            try:
                tools, tool_notes = check_tool(self.recipe, tool_config, self.draft)
            except UserError as error:
                yield str(error)
                continue
            notes += tool_notes
            self.schemas += [tool.schema for tool in tools]
        yield from check_duplicate_names([schema["function"]["name"] for schema in self.schemas])

    def load_judge(self, notes: list[str]) -> Iterator[str]:
        judge = self.recipe.judge
        self.judge = run_async(open_judge(judge, cache=None))
        if self.judge is not None:
            notes.append(f"{judge.model} at {judge.url} answers, {judge.votes} votes an answer")
        else:
            notes.append("none")
        yield from ()

    def load_first_model(self, notes: list[str]) -> Iterator[str]:
        self.dialect_choice = choose_dialect(self.recipe)
        self.recipe = self.recipe.model_copy(update={"dialect": self.dialect_choice.name})
        folder = self.recipe.model
        if folder is None:
            folder = self.draft / "model"
            write_first_model(self.data_source, folder)
        meta_model = self.meta_model = make_empty_model(folder)
        require_plain_attention(meta_model)
        if self.recipe.model is not None:
            require_twin_parity(meta_model.config)
        self.config = meta_model.config.get_text_config()
        self.parameters = sum(p.numel() for p in meta_model.parameters())
        if self.recipe.lora is not None:
            LoraAdapter(meta_model, self.recipe.lora, self.recipe.seed)  # freezes the model
        self.trainable_parameters = sum(
            p.numel() for p in meta_model.parameters() if p.requires_grad
        )
        self.dialect = load_dialect(self.recipe, folder)
        notes.append(f"{self.config.model_type}, {self.parameters:,} parameters")
        if shows_date(self.dialect.tokenizer, self.recipe.chat_template_kwargs):
            notes.append(f"prompts show the date {self.recipe.date} (date=)")
        if self.recipe.lora is not None:
            notes.append(f"{self.trainable_parameters:,} of an adapter")
        notes += [*describe_aux_losses(meta_model.config), *describe_dropout(meta_model.config)]
        yield from ()

    @property
    def encoder(self) -> DemonstrationEncoder:
        """Encoder of the demonstrations."""
        return DemonstrationEncoder(self.dialect, self.schemas)

    @property
    def has_weights(self) -> bool:
        """Return whether the weights are present. Without them nothing can run yet, so the memory
        and disk of this machine are not checked against the recipe."""
        folder = self.recipe.model
        return folder is None or any(folder.glob("*.safetensors")) or any(folder.glob("*.bin"))

    def check_weights(self, notes: list[str]) -> Iterator[str]:
        """Check that the weights are present, complete and finite; weights of a generated model
        always are. A small one is also probed, as by a trainer."""
        if not self.has_weights:
            yield f"{self.recipe.model} holds no weights: copy its .safetensors files there."
        elif self.recipe.model is not None:
            is_small = self.parameters <= MAX_TWIN_PARAMETERS
            dtype = self.recipe.policy_dtype if is_small else "bfloat16"
            model = load_model(self.recipe.model, torch.device("cpu"), dtype)
            if is_small:
                require_forward_parity(model, dtype)


# -- tools -------------------------------------------------------------------------------------


def check_tool(
    recipe: Recipe, tool_config: ToolConfig, draft: Path
) -> tuple[list[AnyTool], list[str]]:
    """Return the tools created from one entry of a recipe, and notes on them. No index is built.

    Raises UserError for an entry that cannot be used.
    """
    tools = make_prompt_only_tools(recipe.model_copy(update={"tools": (tool_config,)}))
    if tool_config.name == SEARCH_TOOL:
        return tools, list(find_search().check(recipe, draft))
    return tools, [
        _describe_server(tool_config, tools) if tool_config.name == MCP_TOOL else tool_config.name
    ]


def _describe_server(tool_config: ToolConfig, tools: Sequence[AnyTool]) -> str:
    names = ", ".join(tool.name for tool in tools) or "none"
    return f"{len(tools)} of '{tool_config.settings['mcp']}': {names}"
