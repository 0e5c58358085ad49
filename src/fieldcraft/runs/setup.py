"""Objects of the checks before a run, and the checks that load them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fieldcraft.config.choices import ToolConfig
from fieldcraft.config.components import MCP_TOOL, RUBRIC
from fieldcraft.config.recipe import Recipe, uses_tools
from fieldcraft.config.sampling import describe_sample_counts
from fieldcraft.dialects import BaseDialect
from fieldcraft.dialects.chat_template import shows_date
from fieldcraft.dialects.encoding import DemonstrationEncoder
from fieldcraft.engine.attention import require_plain_attention
from fieldcraft.environments.tool_environment import find_duplicate_names
from fieldcraft.rewards.answers import StatelessReward
from fieldcraft.rewards.grading import JUDGE
from fieldcraft.rewards.judge import JudgeReward
from fieldcraft.runs.build import (
    make_criteria,
    make_prompt_only_tools,
    make_verdict_reward,
    open_judge,
)
from fieldcraft.runs.dialect_choice import DialectChoice
from fieldcraft.runs.dialects import choose_dialect, load_dialect
from fieldcraft.runs.event_loop import run_async
from fieldcraft.runs.examples import ExampleSource
from fieldcraft.runs.first_model import write_first_model
from fieldcraft.runs.inputs import make_data_source
from fieldcraft.runs.memory_estimate import ModelSizes
from fieldcraft.runs.search import SEARCH_TOOL, find_search
from fieldcraft.runs.sources import DataSource
from fieldcraft.train.lora import LoraAdapter
from fieldcraft.train.model import choose_device, describe_aux_losses, load_model, make_empty_model
from fieldcraft.train.train_mode import describe_dropout
from fieldcraft.train.twin import MAX_TWIN_PARAMETERS, require_forward_parity, require_twin_parity
from fieldcraft.types import AnyTool, Task, Trajectory, UserError

# Slow or costly graders, so that grading demonstrations is left to the run.
EXPENSIVE_GRADERS = (JUDGE, RUBRIC, "unit_tests", "stdin_tests")


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


class CheckReport:
    """Notes and errors of one check, each a sentence or a part of one."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.errors: list[str] = []

    def note(self, *notes: str) -> None:
        self.notes += notes

    def error(self, *errors: str) -> None:
        self.errors += errors


@dataclass
class CheckContext:
    """Recipe to check, and the objects that its first checks load for later ones.

    Attributes:
        draft: folder for temporary files.
        out: folder on the disk to which the run will write.
        examine: callback with the source of examples, if they are to be shown.
    """

    recipe: Recipe
    draft: Path
    out: Path = Path()
    examine: Callable[[ExampleSource], None] | None = None
    device: torch.device = field(init=False)
    data_source: DataSource = field(init=False)
    tasks: list[Task] = field(init=False)  # for training and testing
    schemas: list[dict[str, Any]] = field(init=False)  # of the tools
    judge: JudgeReward | None = field(init=False)
    dialect_choice: DialectChoice = field(init=False)
    dialect: BaseDialect = field(init=False)
    meta_model: Any = field(init=False)  # model without weights
    sizes: ModelSizes = field(init=False)

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


class Check(NamedTuple):
    """One check of a recipe. `run` reports notes and errors, or raises UserError. It is executed if
    it applies and the checks in `needs` passed."""

    name: str
    run: Callable[[CheckContext, CheckReport], None]
    needs: tuple[str, ...] = ()
    applies: Callable[[CheckContext], bool] = lambda _: True


def load_device(context: CheckContext, report: CheckReport) -> None:
    uses_cluster = context.recipe.cluster.trains_and_samples  # of processes with separate devices
    context.device = choose_device("cpu" if uses_cluster else context.recipe.device)
    report.note(str(context.device))


def load_questions(context: CheckContext, report: CheckReport) -> None:
    recipe = context.recipe
    data_source = context.data_source = make_data_source(recipe, is_preview=True)
    data_source.deferred_graders = list_deferred_graders(recipe)
    data_source.verdict_reward = make_verdict_reward(
        recipe, *map(PlaceholderReward, data_source.deferred_graders)
    )
    train, test = data_source.train_tasks(), data_source.evaluation_tasks()
    report.note(f"{len(train)} to train", f"{len(test)} to test", *data_source.warnings())
    report.note(*describe_sample_counts(recipe.evaluation.samples, test))
    if not test or not (train or recipe.evaluation.tasks):
        raise UserError(
            f"there are {len(train)} questions to train on and {len(test)} to test on: give"
            " tasks=FILE more of them, or the world a split that has some."
        )
    context.tasks = train + test
    heldout = {t.question for t in test if t.meta["split"] == "heldout"}
    overlap = heldout & {t.question for t in train}
    if overlap and not data_source.may_repeat_questions:
        report.error(
            f"{len(overlap)} questions are both trained and held out, such as '{min(overlap)}':"
            " remove repeated questions."
        )


def load_tools(context: CheckContext, report: CheckReport) -> None:
    """Open the tools one by one, so that an error in one does not hide others. Tools that the run
    does not use stay closed."""
    recipe, context.schemas = context.recipe, []
    for tool_config in recipe.tools if uses_tools(recipe) else ():
        try:
            tools, tool_notes = load_tool(recipe, tool_config, context.draft)
        except UserError as error:
            report.error(str(error))
            continue
        report.note(*tool_notes)
        context.schemas += [tool.schema for tool in tools]
    names = [schema["function"]["name"] for schema in context.schemas]
    report.error(*find_duplicate_names(names))


def load_tool(
    recipe: Recipe, tool_config: ToolConfig, draft: Path
) -> tuple[list[AnyTool], list[str]]:
    """Return the tools created from one entry of a recipe, and notes on them. No index is built.

    Raises UserError for an entry that cannot be used.
    """
    tools = make_prompt_only_tools(recipe.model_copy(update={"tools": (tool_config,)}))
    if tool_config.name == SEARCH_TOOL:
        return tools, list(find_search().check(recipe, draft))
    if tool_config.name != MCP_TOOL:
        return tools, [tool_config.name]
    names = ", ".join(tool.name for tool in tools) or "none"
    return tools, [f"{len(tools)} of '{tool_config.settings['mcp']}': {names}"]


def load_judge(context: CheckContext, report: CheckReport) -> None:
    judge = context.recipe.judge
    context.judge = run_async(open_judge(judge, cache=None))
    if context.judge is not None:
        report.note(f"{judge.model} at {judge.url} answers, {judge.votes} votes an answer")
    else:
        report.note("none")
    if context.recipe.rubric:  # evaluations grade by it, too
        make_criteria(context.recipe, context.judge)
        report.note(f"criteria: {', '.join(context.recipe.rubric)}")


def load_first_model(context: CheckContext, report: CheckReport) -> None:
    """Load the first model without weights, and choose the dialect; a generated model needs the
    questions."""
    choice = context.dialect_choice = choose_dialect(context.recipe)
    recipe = context.recipe = context.recipe.model_copy(update={"dialect": choice.name})
    folder = recipe.model
    if folder is None:
        folder = context.draft / "model"
        write_first_model(context.data_source, folder)
    meta_model = context.meta_model = make_empty_model(folder)
    require_plain_attention(meta_model)
    if recipe.model is not None:
        require_twin_parity(meta_model.config)
    parameters = trainable_parameters = sum(p.numel() for p in meta_model.parameters())
    if recipe.lora is not None:
        LoraAdapter(meta_model, recipe.lora, recipe.seed)  # freezes the model
        trainable_parameters = sum(p.numel() for p in meta_model.parameters() if p.requires_grad)
    config = meta_model.config.get_text_config()
    context.sizes = ModelSizes(recipe, config, parameters, trainable_parameters)
    context.dialect = load_dialect(recipe, folder)
    report.note(f"{config.model_type}, {parameters:,} parameters")
    if shows_date(context.dialect.tokenizer, recipe.chat_template_kwargs):
        report.note(f"prompts show the date {recipe.date} (date=)")
    if recipe.lora is not None:
        report.note(f"{trainable_parameters:,} of an adapter")
    report.note(*describe_aux_losses(meta_model.config), *describe_dropout(meta_model.config))


def check_weights(context: CheckContext, report: CheckReport) -> None:
    """Check that the weights are present, complete and finite; weights of a generated model always
    are. A small one is also probed, as by a trainer."""
    folder = context.recipe.model
    if folder is None:
        report.note("random ones of a new model")
        return
    if not context.has_weights:
        raise UserError(f"{folder} holds no weights: copy its .safetensors files there.")
    is_small = context.sizes.parameters <= MAX_TWIN_PARAMETERS
    dtype = context.recipe.policy_dtype if is_small else "bfloat16"
    model = load_model(folder, torch.device("cpu"), dtype)
    if is_small:
        require_forward_parity(model, dtype)
    report.note(f"{len(list(model.parameters()))} tensors, complete and finite")
