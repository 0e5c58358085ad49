"""Ends of turns, in the conversations of families of models."""

import asyncio
from dataclasses import replace
from datetime import date

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from families import FAMILIES, Family
from fieldcraft.config.sections import DEFAULT_DATE, BudgetConfig
from fieldcraft.dialects import BaseDialect, make_dialect
from fieldcraft.dialects.chat import ChatRenderer
from fieldcraft.dialects.chat_template import find_turn_end
from fieldcraft.dialects.encoding import encode_demonstration
from fieldcraft.engine.local.engine import LocalEngine
from fieldcraft.environments.tool_environment import ToolEnvironment, run_rollout
from fieldcraft.environments.turns import Policy
from fieldcraft.rewards.answers import ExactMatch
from fieldcraft.sampling import Completion, SamplingParams, StopReason
from fieldcraft.types import Answer, Task, Thought, UserError

QUESTION = "Where is the film from?"
TASK = Task("t", QUESTION, ("Northport",))
EVERY = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
# Dialects whose answers end with the end of the turn.
ANSWERS = ("autocoa", "torl", "hermes", "retool")


def speak(family: Family, dialect: str = "search-r1") -> BaseDialect:
    tokenizer = family.tokenizer()
    return make_dialect(dialect, tokenizer, "", eos_ids=family.ends(tokenizer))


@EVERY
def test_the_prompt_is_that_of_the_chat_template(family: Family) -> None:
    dialect = speak(family)
    rendered = dialect.tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}], add_generation_prompt=True, tokenize=False
    )
    for opened in (
        "<think>\n\n</think>\n\n",
        "<think>\n",
        "</think>",
    ):  # a dialect opens its own thoughts
        rendered = rendered.removesuffix(opened)
    prompt = dialect.tokenizer.decode(dialect.encode_prompt(QUESTION, []))
    assert prompt.removesuffix("<think>\n") == rendered
    ids = dialect.tokenizer.encode(prompt, add_special_tokens=False)
    assert dialect.encode_prompt(QUESTION, []) == ids


@EVERY
def test_the_end_is_the_template_s_own_and_any_stop_ends_a_turn(family: Family) -> None:
    dialect = speak(family)
    assert dialect.turn_end.text == family.end
    assert set(dialect.turn_end.texts) == {*family.stops, family.eos, family.end}
    assert {dialect.tokenizer.decode([i]) for i in dialect.turn_end.ids} == set(
        dialect.turn_end.texts
    )


class OneTextEngine:
    """An engine that writes one text and ends it with a given token."""

    def __init__(self, dialect: BaseDialect, text: str, end: int) -> None:
        self.tokenizer = dialect.tokenizer
        self.ids = [*self.tokenizer.encode(text, add_special_tokens=False), end]

    async def generate(self, ids: list[int], sampling: SamplingParams, session: str) -> Completion:
        text = self.tokenizer.decode(self.ids)
        return Completion(self.ids, [0.0] * len(self.ids), text, StopReason.EOS)

    def release(self, session: str) -> None:
        pass


@pytest.mark.parametrize("name", ANSWERS)
@EVERY
def test_a_right_answer_that_ended_by_itself_scores_1_whatever_ended_it(
    family: Family, name: str
) -> None:
    dialect = speak(family, name)
    text = dialect.render_thought("So it is.") + dialect.render_answer("Northport")
    for end in sorted(dialect.turn_end.ids):
        policy = Policy(engine=OneTextEngine(dialect, text, end))
        env = ToolEnvironment(dialect, [], BudgetConfig())
        found = asyncio.run(run_rollout(TASK, policy, env, "key"))
        assert found.answer == "Northport"
        assert found.well_formed
        assert ExactMatch()([found]) == [1]


@EVERY
def test_demonstrations_train_the_template_s_end(family: Family) -> None:
    dialect = speak(family, "autocoa")
    steps = [Thought("So it is."), Answer("Northport")]
    trajectory = encode_demonstration(TASK, steps, dialect, [])
    assert dialect.tokenizer.decode(trajectory.ids[-1:]) == family.end
    assert trajectory.well_formed


@EVERY
def test_the_engine_stops_after_every_end(family: Family) -> None:
    tokenizer = family.tokenizer()
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 128}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **shape, **heads)).eval()
    model.generation_config.eos_token_id = list(family.ends(tokenizer))
    engine, sampling = (
        LocalEngine(model, tokenizer, max_num_seqs=64),
        SamplingParams(64, temperature=3.0),
    )

    async def turns() -> list[Completion]:
        calls = (engine.generate([1], replace(sampling, seed=i), f"{i}") for i in range(64))
        return await asyncio.gather(*calls)

    reached, ends = set(), speak(family).turn_end.ids
    for done in asyncio.run(turns()):
        assert not set(done.ids[:-1]) & ends
        reached |= {done.ids[-1]} if done.stop_reason is StopReason.EOS else set()
    assert reached == ends


@EVERY
def test_a_reply_follows_the_end_as_the_template_writes_it(family: Family) -> None:
    dialect = speak(family)
    talk = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": "Northport"},
        {"role": "user", "content": "Are you sure?"},
    ]
    rendered = dialect.tokenizer.apply_chat_template(
        talk, add_generation_prompt=True, tokenize=False
    )
    chat = ChatRenderer(dialect)
    reply = chat.render_reply("Are you sure?")
    for opened in ("<think>\n\n</think>\n\n", "<think>\n", "</think>"):
        rendered = rendered.removesuffix(opened)
    assert rendered.endswith("Northport" + dialect.turn_end.text + reply)


def test_a_tokenizer_where_nothing_ends_is_refused() -> None:
    tokenizer = FAMILIES["smollm2"].tokenizer()
    tokenizer.chat_template = None
    tokenizer.eos_token = None
    with pytest.raises(UserError, match="no end-of-sequence token; set its eos_token"):
        find_turn_end(tokenizer)
    assert find_turn_end(tokenizer, [0]).token_id == 0


def test_ends_that_the_tokenizer_lacks_are_left_out() -> None:
    tokenizer = FAMILIES["smollm2"].tokenizer()
    assert find_turn_end(tokenizer, [-1, 10**6, 2**40]) == find_turn_end(tokenizer)


def test_the_date_of_a_template_is_the_recipe_s_and_not_the_clock_s() -> None:
    tokenizer = FAMILIES["llama 3"].tokenizer()
    tokenizer.chat_template = "{{ strftime_now('%d %b %Y') }}: " + tokenizer.chat_template
    for day, rendered in ((DEFAULT_DATE, "26 Jul 2024: "), (date(2031, 2, 3), "03 Feb 2031: ")):
        dialect = make_dialect("search-r1", tokenizer, "", prompt_date=day)
        assert tokenizer.decode(dialect.encode_prompt(QUESTION, [])).startswith(rendered)


@pytest.mark.parametrize(
    "asked",
    [
        "{% set now = strftime_now %}{{ now('%Y') }}",
        "{% set form = '%Y' %}{{ strftime_now(form) }}",
        "{{ strftime_now(format='%Y') }}",
    ],
)
def test_a_template_that_reaches_the_clock_otherwise_is_refused(asked: str) -> None:
    tokenizer = FAMILIES["llama 3"].tokenizer()
    tokenizer.chat_template = asked + tokenizer.chat_template
    with pytest.raises(UserError, match="reads the clock"):
        make_dialect("search-r1", tokenizer, "").encode_prompt(QUESTION, [])


def test_a_template_may_ask_whether_there_is_a_clock() -> None:
    tokenizer = FAMILIES["llama 3"].tokenizer()
    condition = '{% if strftime_now is defined %}{{ strftime_now("It\'s %Y") }}{% endif %}'
    tokenizer.chat_template = condition + tokenizer.chat_template
    dialect = make_dialect("search-r1", tokenizer, "")
    assert tokenizer.decode(dialect.encode_prompt(QUESTION, [])).startswith("It's 2024")


CHANNELS = """{% for m in messages %}<|start|>{{ m.role }}{% if m.role == 'assistant' %}\
<|channel|>final{% endif %}<|message|>{{ m.content }}<|end|>{% endfor %}\
{% if add_generation_prompt %}<|start|>assistant{% endif %}"""


def test_a_template_that_puts_special_tokens_before_an_answer_is_refused() -> None:
    special = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>")
    with pytest.raises(UserError, match=r"writes '<\|channel\|>final<\|message\|>' before"):
        speak(Family(CHANNELS, special, "<|end|>", ("<|end|>",), "<|end|>"))
