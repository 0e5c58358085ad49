"""Fields of an agent's requests that change a turn, and templates that omit thoughts."""

import pytest
from blackbox_parts import ONE_TURN, TASK, TOKENIZER, TWO_TURNS, authors, run_scripted

from checkpoints import tiny_tokenizer
from families import FAMILIES
from fieldcraft.records.chains import split_chains
from fieldcraft.types import Author, Status, Tokenizer, Trajectory

CALL = '<tool_call>{"name": "search", "arguments": {}}</tool_call>'


def test_how_a_request_chooses_tools_and_forms() -> None:
    done, engine = run_scripted("chooses", [CALL, CALL], max_context_tokens=4000)
    forbidden, offered, *refused = (done.answer or "").splitlines()
    assert (forbidden, offered) == ("content,role", "role,tool_calls")
    prompts = [TOKENIZER.decode(ids) for ids in engine.prompts]
    assert ["search" in prompt for prompt in prompts] == [False, True]
    assert len(refused) == 3
    for key, sentence in zip(
        ("tool_choice", "response_format", "guided_regex"), refused, strict=True
    ):
        assert f"'{key}'" in sentence


def test_variables_of_the_chat_template() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{% if mood %}[{{ mood }}]{% endif %}" + tokenizer.chat_template
    done, engine = run_scripted("sets_the_template", ["Ada"], tokenizer=tokenizer)
    answer, unknown, reserved, forged = (done.answer or "").splitlines()
    assert answer == "Ada"
    assert tokenizer.decode(engine.prompts[0]).startswith("[calm]")
    assert "no variable 'mod'; did you mean 'mood'?" in unknown
    assert "no variable 'messages'" in reserved
    assert "'<|im_end|>' is a special token" in forged


def with_template(assistant: str) -> Tokenizer:
    """Return a ChatML tokenizer that renders the model's messages by the given expression."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{% if m.role == 'assistant' %}" + assistant + "{% else %}{{ m.content }}{% endif %}"
        "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    return tokenizer


STRIPS = {
    "the second part": with_template("{{ m.content.split('</think>')[1].strip() }}"),
    "all behind a place": with_template("{{ m.content[m.content.find('</think>') + 8:] | trim }}"),
    "an empty thought": FAMILIES["glm 4.6"].tokenizer(),
}
TURNS = [f"<think>Hm, {name}?</think>{name}" for name in ("Ada", "Bo", "Cy")]


def assert_trained_as_sampled(done: Trajectory, prompts: list[list[int]]) -> None:
    """Check that each turn follows exactly the ids that the policy read."""
    read = []
    for chain in split_chains(done):
        ids: list[int] = []
        for segment in chain:
            read += [list(ids)] if segment.author is Author.POLICY else []
            ids += segment.ids
    assert read == prompts


@pytest.mark.parametrize("tokenizer", STRIPS.values(), ids=STRIPS)
def test_a_template_that_leaves_thoughts_out_begins_a_chain_with_each_turn(
    tokenizer: Tokenizer,
) -> None:
    done, engine = run_scripted("converses", TURNS, tokenizer=tokenizer, max_context_tokens=4000)
    assert authors(done) == [ONE_TURN] * 3
    assert done.status is Status.ANSWERED
    assert_trained_as_sampled(done, engine.prompts)
    messages: list[dict[str, str]] = []
    for prompt, text, turn in zip(
        engine.prompts, (TASK.question, "And then?", "Sure <|im_end|>?"), TURNS, strict=True
    ):
        messages.append({"role": "user", "content": text})
        rendered = tokenizer.decode(prompt)
        assert rendered == tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        assert "Hm" not in rendered
        messages.append({"role": "assistant", "content": turn})


@pytest.mark.parametrize(
    "tokenizer", [TOKENIZER, FAMILIES["deepseek r1"].tokenizer()], ids=["chatml", "r1"]
)
def test_a_template_that_lets_thoughts_stand_in_place_goes_on_with_the_chain(
    tokenizer: Tokenizer,
) -> None:
    done, engine = run_scripted("converses", TURNS, tokenizer=tokenizer, max_context_tokens=4000)
    assert authors(done) == [[*TWO_TURNS, Author.TOOL, Author.POLICY]]
    assert_trained_as_sampled(done, engine.prompts)


def test_a_template_that_fails_is_a_refusal_of_the_request() -> None:
    tokenizer = with_template("{{ raise_exception('no answers') }}")
    done, _ = run_scripted("converses", TURNS, tokenizer=tokenizer, max_context_tokens=4000)
    assert done.status is Status.ERROR
    assert "no answers" in done.error
    assert "BadRequestError" in done.error
