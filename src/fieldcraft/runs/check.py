"""What would go wrong with a recipe, found before anything is trained.

Some of it would stop a run loudly, though perhaps only hours later; the rest would let it go on and
learn nothing. Nothing is written but a temporary folder.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from fieldcraft.agents.chat import NO_TEMPLATE
from fieldcraft.runs.collect import endpoint_of
from fieldcraft.config.stages import AnyStage, Pairs, Rl, Sft
from fieldcraft.config.recipe import Recipe
from fieldcraft.dialects.demonstrations import encode_turn
from fieldcraft.data.sources import ensure_corpus
from fieldcraft.dialects import get_dialect, round_trip_problems
from fieldcraft.runs.inputs import FileInputs, Inputs, make_inputs
from fieldcraft.runs.run import open_endpoint, open_judge
from fieldcraft.rewards.answers import exact_match
from fieldcraft.tools.search.dense import Encoder
from fieldcraft.tools.search.passages import Passage, read_corpus
from fieldcraft.tools.search.index import index_settings
from fieldcraft.tools.search.tool import search_function
from fieldcraft.tools.search.client import RemoteSearchTool
from fieldcraft.train.batch import to_sample
from fieldcraft.train.lora import Adapter
from fieldcraft.train.model import choose_device, load_tokenizer
from fieldcraft.types import Answer, Author, Dialect, Task, Tool, Trajectory, UserError

EXAMPLES = 200  # of a world's data set that are made and looked at; all of a file's are
VARIANTS = 20  # of a world's re-deals that these examples are drawn from
ESTIMATED = ("memory", "disk")  # checks that compare with an estimate
ADAMW_BYTES = 16  # a parameter in float32, its gradient and two moments
CHECKPOINT_BYTES = 12  # a parameter and two moments
FLOAT = 4
BYTES = {"float32": FLOAT, "bfloat16": 2}

Report = Callable[[str, Sequence[str], Sequence[str]], None]


def check_recipe(recipe: Recipe, out: Path, report: Report) -> list[str]:
    """Look at everything a run would need.

    Args:
        recipe: the settings.
        out: a folder on the disk that the run will write to.
        report: called after every check with its name, notes, and problems.

    Returns:
        The problems, each one sentence; none means that nothing was found.
    """
    problems: list[str] = []

    def look(name: str, check: Callable[[list[str]], Iterator[str]]) -> bool:
        notes: list[str] = []
        found: list[str] = []
        try:
            found += check(notes)
        except UserError as error:
            found.append(str(error))
        report(name, notes, found)
        problems.extend(found)
        return not found

    with tempfile.TemporaryDirectory() as draft:
        setup = Setup(recipe, Path(draft))
        sound = [look("device", setup.find_device), look("questions", setup.find_questions)]
        sound += [look("search", setup.find_search)]
        if recipe.collect is not None:
            look("teacher", partial(teacher_problems, recipe))
            return problems
        sound += [look("model", setup.find_model)]
        sound += [look("judge", setup.find_judge)]
        look("weights", setup.find_weights)
        if all(sound):
            look("dialect", partial(dialect_problems, setup))
            look("gold answers", partial(gold_problems, setup))
            look("budget", partial(budget_problems, setup))
            for name, stage in recipe.stages.items():
                look(f"stage {name}", partial(stage_problems, setup, name, stage))
            look("memory", partial(memory_problems, setup))
            look("disk", partial(disk_problems, setup, out))
    return problems


@dataclass
class Setup:
    """What the checks look at, found piece by piece. Each step notes what it found and yields or
    raises what is wrong."""

    recipe: Recipe
    draft: Path
    device: torch.device = field(init=False)
    inputs: Inputs = field(init=False)
    tasks: list[Task] = field(init=False)  # to train and to test on
    tool: Tool = field(init=False)
    dialect: Dialect = field(init=False)
    config: Any = field(init=False)  # transformers' text configuration
    parameters: int = field(init=False)
    trained: int = field(init=False)  # of the parameters, or those of an adapter on them

    def find_device(self, notes: list[str]) -> Iterator[str]:
        self.device = choose_device(self.recipe.device)
        notes.append(str(self.device))
        yield from ()

    def find_questions(self, notes: list[str]) -> Iterator[str]:
        world = self.recipe.world
        few = world.model_copy(update={"variants": min(world.variants, VARIANTS)})
        self.inputs = make_inputs(self.recipe.model_copy(update={"world": few}))
        train, test = self.inputs.train_tasks(), self.inputs.evaluation_tasks()
        notes += [f"{len(train)} to train", f"{len(test)} to test"]
        self.tasks = train + test
        heldout = {t.question for t in test if t.meta["split"] == "heldout"}
        if both := heldout & {t.question for t in train}:
            yield (
                f"{len(both)} questions are both trained and held out, such as '{min(both)}':"
                " remove repeated questions."
            )

    def find_search(self, notes: list[str]) -> Iterator[str]:
        search = self.recipe.search

        async def nothing(query: str) -> Sequence[Passage]:
            return []

        self.tool = search_function(nothing)  # only its schema is needed: no index is built
        if search.url is not None:
            remote = RemoteSearchTool(search.url, search.topk, search.timeout_seconds)
            asyncio.run(remote.check())
            notes.append(f"{search.url} answers")
        elif self.recipe.corpus is not None:
            corpus = ensure_corpus(self.recipe.corpus, self.draft / "corpus.jsonl")
            notes.append(f"{sum(1 for _ in read_corpus(corpus))} passages")
        else:
            notes.append("the world's articles")
        if search.url is None:
            index_settings(search.k1, search.b, search.ranking, search.encoder)
            if search.encoder is not None:
                notes.append(f"{Encoder(search.encoder).dimensions} dimensions of {search.encoder}")
        yield from ()

    def find_judge(self, notes: list[str]) -> Iterator[str]:
        judge = self.recipe.judge
        if open_judge(judge, cache=None):
            notes.append(f"{judge.model} at {judge.url} answers, {judge.votes} votes an answer")
        else:
            notes.append("none")
        yield from ()

    def find_model(self, notes: list[str]) -> Iterator[str]:
        folder = self.recipe.model
        if folder is None:
            folder = self.draft / "model"
            self.inputs.write_model(folder)
        if not (folder / "config.json").exists():
            raise UserError(f"{folder} is no checkpoint: it has no config.json.")
        tokenizer = load_tokenizer(folder)
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        with torch.device("meta"):
            shapes = AutoModelForCausalLM.from_config(config)
        self.config = config.get_text_config()
        self.parameters = sum(p.numel() for p in shapes.parameters())
        if self.recipe.lora is not None:
            Adapter(shapes, self.recipe.lora, self.recipe.seed)  # freezes all but itself
        self.trained = sum(p.numel() for p in shapes.parameters() if p.requires_grad)
        r = self.recipe
        self.dialect = get_dialect(
            r.dialect, tokenizer, r.instruction, template=r.template, system=r.system
        )
        notes.append(f"{self.config.model_type}, {self.parameters:,} parameters")
        if self.recipe.lora is not None:
            notes.append(f"{self.trained:,} of an adapter")
        if len(tokenizer) > self.config.vocab_size:
            yield (
                f"the tokenizer of {folder} has {len(tokenizer)} tokens and the model only"
                f" {self.config.vocab_size}: take the tokenizer that belongs to the model."
            )

    @property
    def has_weights(self) -> bool:
        """Where they are missing, nothing can be run yet, so memory and disk of this machine are
        not held against the recipe."""
        folder = self.recipe.model
        return folder is None or any(folder.glob("*.safetensors")) or any(folder.glob("*.bin"))

    def find_weights(self, notes: list[str]) -> Iterator[str]:
        if not self.has_weights:
            yield f"{self.recipe.model} holds no weights: copy its .safetensors files there."


def teacher_problems(recipe: Recipe, notes: list[str]) -> Iterator[str]:
    """The teacher of a recipe that collects must answer, or at least be there."""
    settings = recipe.teacher
    if settings.model is None:
        notes.append("the oracle of the world")
    elif settings.url is not None:
        asyncio.run(endpoint_of(settings, cache=None).check())
        notes.append(f"{settings.url} answers as {settings.model}")
    else:
        folder = Path(settings.model)
        if not (folder / "config.json").exists():
            raise UserError(f"{folder} is no checkpoint: give its folder, or set teacher.url too.")
        if load_tokenizer(folder).chat_template is None:
            yield NO_TEMPLATE
        notes.append(str(folder))


# -- dialect and questions ---------------------------------------------------------------------


def dialect_problems(setup: Setup, notes: list[str]) -> Iterator[str]:
    """Tags must come back from the tokenizer as they went in."""
    notes.append(setup.dialect.name)
    for problem in round_trip_problems(setup.dialect):
        yield f"{problem[:-1]}, so the dialect '{setup.dialect.name}' cannot be used with it."


def gold_problems(setup: Setup, notes: list[str]) -> Iterator[str]:
    """A gold answer, written as a policy writes it and read back, must score 1."""
    lost = [task for task in setup.tasks if not any(_scores(setup.dialect, task))]
    notes.append(f"{len(setup.tasks) - len(lost)} of {len(setup.tasks)} score 1")
    if lost:
        yield (
            f"{len(lost)} of {len(setup.tasks)} questions cannot be answered right, because their"
            f" gold answers do not survive the dialect '{setup.dialect.name}', such as"
            f" {lost[0].answers[0]!r} of task '{lost[0].id}': remove or rewrite them."
        )


def _scores(dialect: Dialect, task: Task) -> Iterator[float]:
    for gold in task.answers:
        written = dialect.tokenizer.decode(encode_turn(dialect, [], dialect.write_answer(gold)))
        read = dialect.parse([written])
        yield exact_match(read.text, task.answers) if isinstance(read, Answer) else 0.0


def budget_problems(setup: Setup, notes: list[str]) -> Iterator[str]:
    """The model must be able to read a whole rollout, and a rollout to hold more than a prompt."""
    budget = setup.recipe.budget
    positions = getattr(setup.config, "max_position_embeddings", None)
    if positions is not None and budget.total_tokens > positions:
        yield (
            f"budget.total_tokens={budget.total_tokens} is more than the {positions} positions of"
            f" the model: set budget.total_tokens={positions} or less."
        )
    longest = max(setup.tasks, key=lambda task: len(task.question))
    prompt = len(setup.dialect.prompt(longest.question, [setup.tool.schema]))
    notes.append(f"the longest prompt has {prompt} of {budget.total_tokens} tokens")
    if prompt + 2 * budget.turn_tokens > budget.total_tokens:
        yield (
            f"the prompt of task '{longest.id}' has {prompt} tokens, which leaves no room for a"
            f" search and an answer of {budget.turn_tokens} tokens each within"
            f" budget.total_tokens={budget.total_tokens}: raise it."
        )


# -- stages ------------------------------------------------------------------------------------


def stage_problems(setup: Setup, name: str, stage: AnyStage, notes: list[str]) -> Iterator[str]:
    """The data of a supervised stage; what would leave reinforcement learning without a signal."""
    match stage:
        case Rl():
            yield from rl_problems(name, stage)
        case Pairs():
            count = min(stage.examples or EXAMPLES, EXAMPLES)
            pairs = setup.inputs.pairs(stage.data, count, setup.dialect, setup.tool)
            yield from length_problems(setup, name, [t for pair in pairs for t in pair], notes)
        case Sft():
            yield from sft_problems(setup, name, stage, notes)


def rl_problems(name: str, stage: Rl) -> Iterator[str]:
    if stage.group < 2 and stage.baseline in ("group", "others"):
        yield (
            f"stage '{name}' has group={stage.group}: an advantage compares rollouts of one"
            " question, so it would always be 0; set group to 2 or more."
        )
    if stage.endpoint is not None:
        open_endpoint(stage.endpoint, cache=None)
    if not any(stage.rewards.values()):
        yield f"stage '{name}' gives no reward a weight: set rewards, as in {{em: 1.0}}."


def sft_problems(setup: Setup, name: str, stage: Sft, notes: list[str]) -> Iterator[str]:
    dialect, tool, inputs = setup.dialect, setup.tool, setup.inputs
    if isinstance(inputs, FileInputs):
        found = inputs.trajectories(stage.data, stage.examples, dialect, tool)
        reasons = inputs.usable_demonstrations(dialect, tool)[1]
        notes += [f"{count} left out: {reason}" for reason, count in reasons.most_common()]
    else:
        found = inputs.trajectories(
            stage.data, min(stage.examples or EXAMPLES, EXAMPLES), dialect, tool
        )
    if len(found) < stage.batch:
        yield (
            f"stage '{name}' has {len(found)} demonstrations, fewer than one batch of"
            f" {stage.batch}: give more, or lower batch."
        )
    broken = [t for t in found if t.status == "answered" and not t.well_formed]
    if broken:
        yield (
            f"{len(broken)} of {len(found)} demonstrations of stage '{name}' break the grammar of"
            f" '{dialect.name}', such as that of task '{broken[0].task.id}': mend or remove them."
        )
    authors = {Author(author) for author in stage.train_on}
    bare = [t for t in found if not to_sample(t, authors).weight.any()]
    if bare:
        yield (
            f"{len(bare)} of {len(found)} demonstrations of stage '{name}' have no trainable token,"
            f" such as that of task '{bare[0].task.id}': remove them or change train_on."
        )
    yield from length_problems(setup, name, found, notes)


def length_problems(
    setup: Setup, name: str, found: Sequence[Trajectory], notes: list[str]
) -> Iterator[str]:
    limit = setup.recipe.budget.total_tokens
    longest = max(found, key=lambda t: len(t.ids))
    notes.append(f"{len(found)} samples of up to {len(longest.ids)} tokens")
    if len(longest.ids) > limit:
        yield (
            f"stage '{name}' trains on {len(longest.ids)} tokens (task '{longest.task.id}'), more"
            f" than a rollout may have: raise budget.total_tokens={limit}."
        )


# -- memory and disk ---------------------------------------------------------------------------


def memory_problems(setup: Setup, notes: list[str]) -> Iterator[str]:
    """What the run needs at its peak, estimated, against the memory of the device."""
    sizes = memory_sizes(setup)
    name = max(sizes, key=sizes.__getitem__)
    there = free_memory(setup.device)
    notes.append(f"about {_giga(sizes[name])} of {_giga(there)}")
    if sizes[name] > there and setup.has_weights:
        yield (
            f"{name} needs about {_giga(sizes[name])} of memory and {setup.device} has"
            f" {_giga(there)}: lower optim.micro_tokens, max_rows or budget.total_tokens, or set"
            " optim.activation_checkpointing or lora."
        )


def memory_sizes(setup: Setup) -> dict[str, int]:
    """The estimate for every part of a run."""
    recipe = setup.recipe
    rows = min(recipe.max_rows, recipe.evaluation.concurrency)
    evaluation = setup.parameters * FLOAT + cache_bytes(setup, rows, FLOAT)
    stages = {f"stage '{name}'": memory_bytes(setup, s) for name, s in recipe.stages.items()}
    return {**stages, "an evaluation": evaluation}


def memory_bytes(setup: Setup, stage: AnyStage) -> int:
    """Roughly what a stage takes at its peak: its weights, and the activations of one micro-batch
    or, in reinforcement learning before that, the caches of the rollouts.

    Activations are taken as float32. A layer keeps for the backward pass, a token: two normalised
    inputs and what they were made from (4 h), queries, keys, values and the attention's output
    (4 h), the residual stream (2 h) and four products of the feed-forward width f. Attention scores
    are not kept (fused kernels).
    With checkpointing every layer keeps its input, and one at a time all of that. Of the logits
    there are four copies: themselves, scaled, normalised, and their gradient.
    """
    config, recipe = setup.config, setup.recipe
    tokens = max(stage.optim.micro_tokens, recipe.budget.total_tokens)
    layer = 10 * config.hidden_size + 4 * config.intermediate_size
    kept = config.num_hidden_layers * layer
    if stage.optim.activation_checkpointing:
        kept = config.num_hidden_layers * config.hidden_size + layer
    activations = tokens * (kept + 4 * config.vocab_size) * FLOAT
    weights = weight_bytes(setup, stage)
    if not isinstance(stage, Rl):
        return weights + activations
    size = FLOAT if recipe.lora is None else BYTES[recipe.dtype]
    caches = cache_bytes(setup, min(recipe.max_rows, stage.questions * stage.group), size)
    return weights + max(activations, caches * (1 + (stage.simulator == "frozen")))


def weight_bytes(setup: Setup, stage: AnyStage) -> int:
    """What is trained with its gradient and optimiser, and what is only read."""
    only_read = BYTES[setup.recipe.dtype]
    own_critic = setup.parameters * ADAMW_BYTES * has_own_critic(stage)
    reference = isinstance(stage, Rl) and stage.kl_coef > 0
    frozen = isinstance(stage, Rl) and stage.simulator == "frozen"
    models = setup.parameters * only_read * frozen + own_critic + setup.trained * ADAMW_BYTES
    if setup.recipe.lora is None:
        return models + setup.parameters * only_read * reference
    return models + setup.parameters * only_read + setup.trained * FLOAT * reference


def cache_bytes(setup: Setup, rows: int, size: int) -> int:
    """Keys and values of so many rollouts, as long as the budget lets them be."""
    config = setup.config
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    token = 2 * config.num_hidden_layers * config.num_key_value_heads * width * size
    return rows * setup.recipe.budget.total_tokens * token


def has_own_critic(stage: AnyStage) -> bool:
    """Whether a second model is trained and saved in checkpoints."""
    return isinstance(stage, Rl) and (stage.baseline, stage.critic.backbone) == ("critic", "own")


def free_memory(device: torch.device) -> int:
    """Bytes: those free on a GPU, all of the machine's on a CPU (caches give way)."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def disk_problems(setup: Setup, out: Path, notes: list[str]) -> Iterator[str]:
    """Every stage leaves its model; the running one has two checkpoints while it writes one, and in
    reinforcement learning the healthiest one besides."""
    stages = setup.recipe.stages.values()
    critic = any(map(has_own_critic, stages))
    checkpoints = 2 + any(isinstance(stage, Rl) for stage in stages)
    in_checkpoint = setup.trained + setup.parameters * critic
    needed = setup.parameters * len(stages) * FLOAT + checkpoints * CHECKPOINT_BYTES * in_checkpoint
    free = shutil.disk_usage(out).free
    notes.append(f"about {_giga(needed)} of {_giga(free)}")
    if needed > free and setup.has_weights:
        yield (
            f"the run writes about {_giga(needed)} and {out} has {_giga(free)} free: make room or"
            " choose a folder on another disk."
        )


def _giga(size: int) -> str:
    return f"{size / 1e9:.3g} GB"
