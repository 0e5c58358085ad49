"""A task that a model of 7,000 parameters learns in seconds, through the real rollout loop.

The question is a digit, the correct answer is a letter specific to the digit. The policy writes
letters: a to d are answers, s is a search without new information, anything else is a thought. A
turn of four tokens without an answer is cut off.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from fieldcraft.config.rl import Rl
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.engine.local.engine import LocalEngine
from fieldcraft.environments.tool_environment import ToolEnvironment
from fieldcraft.extensions.methods.autocoa import AutoCoADialect
from fieldcraft.recipes.loading import parse_recipe
from fieldcraft.runs.build import make_rubric
from fieldcraft.train.critic import Critic
from fieldcraft.train.stages.rl import RlStage
from fieldcraft.train.trainer import Trainer
from fieldcraft.types import Answer, Task, ToolCall, ToolCalls
from training_parts import FixedTool, rl_stage

ANSWERS = "abcd"
WORDS = ["<end>", "?", *"0123", *ANSWERS, *"s<>"]
TASKS = [Task(f"q{i}", str(i), (letter,)) for i, letter in enumerate("badc")]
LIMITS = BudgetConfig(max_calls=2, max_turn_tokens=4, max_context_tokens=24)


def letters() -> PreTrainedTokenizerFast:
    """Return a tokenizer in which every character is a token."""
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, "?"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>")


@dataclass(frozen=True)
class Letters(AutoCoADialect):
    """Dialect in which every meaningful letter ends a turn."""

    stop_strings = (*ANSWERS, "s")
    delimiters = ("<", ">")
    observation_padding = ""

    def render_prompt_parts(self, tools: Sequence[dict[str, Any]]) -> tuple[str, str]:
        return "", ">"

    def parse(self, turns: Sequence[str]) -> Answer | ToolCalls | None:
        last = turns[-1][-1]
        if last == "s":
            return (ToolCall("search", {"query": turns[-1]}),)
        return Answer(last) if last in ANSWERS else None


def small_model(seed: int = 0) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(
            Qwen2Config(
                vocab_size=len(WORDS),
                hidden_size=24,
                intermediate_size=48,
                num_hidden_layers=1,
                num_attention_heads=2,
                num_key_value_heads=2,
                max_position_embeddings=64,
                tie_word_embeddings=False,
                eos_token_id=0,
                bos_token_id=None,
                pad_token_id=0,
                initializer_range=0.1,
            )
        )


def settings(**given: Any) -> Rl:
    """Return the settings of an `rl` stage as in a recipe."""
    stage = {
        "type": "rl",
        "steps": 60,
        "questions_per_step": 4,
        "group_size": 12,
        "optim": {"lr": 0.01},
    } | given
    rl = parse_recipe(
        {"name": "bandit", "world": {"name": "atlas"}, "stages": {"rl": stage}}
    ).stages["rl"]
    assert isinstance(rl, Rl)
    return rl


def bandit(seed: int = 0, **given: Any) -> RlStage:
    """Return the stage, built as the pipeline builds it."""
    s, model, tokenizer = settings(**given), small_model(seed), letters()
    critic = None
    if s.baseline == "critic":
        own = s.critic.backbone == "separate"
        critic = Critic(small_model(seed) if own else model, s.critic, s.optim, s.steps)
    frozen = None
    if s.simulator == "frozen":  # a different model, so that using the wrong one is detected
        frozen = LocalEngine(small_model(seed + 1), tokenizer, max_num_seqs=64)
    return rl_stage(
        settings=s,
        tasks=TASKS,
        env=ToolEnvironment(Letters(tokenizer, ""), [FixedTool(lambda _: "?")], LIMITS),
        engine=LocalEngine(model, tokenizer, max_num_seqs=64),
        rubric=make_rubric(s, LIMITS),
        trainer=Trainer(model, s.optim, s.steps),
        reference=Trainer(small_model(seed), s.optim, s.steps) if s.kl_coef else None,
        critic=critic,
        frozen_engine=frozen,
        seed=seed,
    )
