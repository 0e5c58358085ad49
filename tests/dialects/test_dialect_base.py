"""The shared base of dialects: plain encoding, boxes, prompts, round trips."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from checkpoints import tiny_tokenizer
from fieldcraft.config.components import BUILTIN_COMPONENTS, ComponentKind
from fieldcraft.dialects import check_round_trip, make_dialect
from fieldcraft.dialects.base import encode_policy_text, encode_untrusted
from fieldcraft.dialects.marked_answers import find_last_boxed
from fieldcraft.types import UserError

TOKENIZER = tiny_tokenizer()


def qwen3_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer whose tags are added tokens that are not special, as in Qwen3."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["<think>", "</think>", "<tool_call>", "</tool_call>", "</tool_response>"])
    return tokenizer


QWEN3 = qwen3_tokenizer()


@settings(deadline=None)
@given(st.text())
def test_plain_text_is_encoded_as_usual_and_comes_back(text: str) -> None:
    ids = encode_untrusted(TOKENIZER, text)
    assert ids == TOKENIZER.encode(text, add_special_tokens=False, split_special_tokens=True)
    assert TOKENIZER.decode(ids) == text


@settings(deadline=None)
@given(
    st.lists(
        st.sampled_from(["<|im_start|>", "<|im_end|>", "<think>", "</tool_call>", "x", " ", "\n"])
    )
)
def test_plain_text_holds_no_added_token(pieces: list[str]) -> None:
    text = "".join(pieces)
    ids = encode_untrusted(QWEN3, text)
    assert set(ids).isdisjoint(QWEN3.added_tokens_decoder)
    assert QWEN3.decode(ids) == text


def test_lone_surrogates_become_replacement_characters() -> None:
    for encode in (encode_untrusted, encode_policy_text):
        assert encode(TOKENIZER, "a\ud83d") == TOKENIZER.encode("a\ufffd", add_special_tokens=False)
        assert TOKENIZER.decode(encode(TOKENIZER, "a\ud83d\ude00")) == "a\U0001f600"
    assert "who \ufffd?" in TOKENIZER.decode(
        make_dialect("hermes", TOKENIZER).encode_prompt("who \ud83d?", [])
    )


def test_written_text_uses_tag_tokens_but_no_special_tokens() -> None:
    think = QWEN3.convert_tokens_to_ids("<think>")
    assert encode_policy_text(QWEN3, "<think>") == [think]
    assert 2 not in encode_policy_text(QWEN3, "say <|im_end|>")


def test_normalizer_of_the_tokenizer_is_applied() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    assert encode_untrusted(tokenizer, "e\u0301") == encode_untrusted(tokenizer, "é") != []


def word_level(*words: str, **special: str) -> PreTrainedTokenizerFast:
    vocabulary = {word: i for i, word in enumerate(("[UNK]", *words))}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special)


def test_tokenizer_that_reads_special_tokens_from_plain_text_is_refused() -> None:
    with pytest.raises(UserError, match=r"'\[END\]' as a special token"):
        make_dialect("autocoa", word_level("[END]", eos_token="[END]"))


def test_tokenizer_without_end_of_sequence_is_refused() -> None:
    with pytest.raises(UserError, match="no end-of-sequence token"):
        make_dialect("autocoa", word_level("who"))


@pytest.mark.parametrize(
    ("text", "box"),
    [
        (r"\boxed{Oslo}", "Oslo"),
        (r"first \boxed{Oslo}, no: \boxed{ Bergen }.", "Bergen"),
        (r"\boxed{\frac{1}{2}} and {then} b", r"\frac{1}{2}"),
        (r"\boxed{\text{Oslo}}", "Oslo"),
        (r"\boxed{\mathrm{Oslo}}", "Oslo"),
        (r"\boxed{\mathbf{B}}", "B"),
        (r"\boxed {x}", "x"),
        (r"\boxed{a} \boxed{b", "a"),
        (r"\boxed{a} \boxed{ }", "a"),
        (r"{ \boxed{a} }} \boxed{b}", "b"),
        (r"} } \boxed{a}", "a"),
        (r"\boxed{a \boxed{b} c}", r"a \boxed{b} c"),
        (r"\boxed{\left\{ 1 \\ 2 \right.}", r"\left\{ 1 \\ 2 \right."),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{x \\{y}}", r"x \\{y}"),
        (r"\boxed{[0, 1\}} and \}", r"[0, 1\}"),
        (r"\boxed{C:\dir\}", "C:\\dir\\"),
        (r"\\boxed{a}", "a"),
        (r"\boxed{}", None),
        (r"\boxed{a", None),
        ("boxed{a}", None),
        ("", None),
    ],
)
def test_last_box(text: str, box: str | None) -> None:
    assert find_last_boxed(text) == box


def test_unknown_dialect_names_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'search-r1'"):
        make_dialect("search_r1", TOKENIZER)


FAILING = "{% for m in messages %}{% if m.role == '" + "ROLE' %}{{ 1 + m.content }}{% endif %}"
FAILING += "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
FAILING += "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"


def test_a_template_may_fail_on_messages_with_an_error_of_python() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = FAILING.replace("ROLE", "assistant")
    assert "Who?" in tokenizer.decode(make_dialect("hermes", tokenizer).encode_prompt("Who?", []))
    tokenizer.chat_template = FAILING.replace("ROLE", "system")
    with pytest.raises(UserError, match=r"rejects a system prompt \(unsupported operand type"):
        make_dialect("hermes", tokenizer, system_prompt="Be brief.")
    tokenizer.chat_template = FAILING.replace("ROLE", "user")
    with pytest.raises(UserError, match=r"chat template cannot be read \(TypeError: unsupported"):
        make_dialect("hermes", tokenizer).encode_prompt("Who?", [])


@pytest.mark.parametrize("name", BUILTIN_COMPONENTS[ComponentKind.DIALECT])
def test_tiny_tokenizers_have_no_round_trip_problems(name: str) -> None:
    assert make_dialect(name, TOKENIZER).name == name
    assert check_round_trip(make_dialect(name, TOKENIZER)) == []
    assert check_round_trip(make_dialect(name, QWEN3)) == []


def test_round_trip_problems_are_named() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Replace("<search>", "<SEARCH>"), normalizers.Replace("Ada", "ada")]
    )
    assert check_round_trip(make_dialect("search-r1", tokenizer)) == [
        "The tokenizer turns the tag '<search>' into '<SEARCH>'.",
        "The tokenizer does not preserve the text of a question in the prompt.",
        "The tokenizer does not preserve the text of the observation "
        r"'\n\n<information>result 1: Ada Lind\nresult 2: Bo Berg</information>\n\n'.",
    ]


def test_prompt_of_a_base_model_begins_with_its_bos_token() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    dialect = make_dialect("search-r1", tokenizer, instruction="Think.")
    assert tokenizer.decode(dialect.encode_prompt("who?", [])) == "<|endoftext|>Think.\n\nwho?\n"
    alone = make_dialect("search-r1", tokenizer, instruction="")
    assert tokenizer.decode(alone.encode_prompt("who?", [])) == "<|endoftext|>who?\n"


def test_no_prompt_holds_an_end_that_the_tokenizer_puts_behind_a_text() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A <|im_end|>",
        special_tokens=[("<|endoftext|>", 0), ("<|im_end|>", 2)],
    )
    for instruction in ("Think.", ""):
        dialect = make_dialect("search-r1", tokenizer, instruction=instruction)
        prefix = f"{instruction}\n\n" if instruction else ""
        assert tokenizer.decode(dialect.encode_prompt("who?", [])) == f"<|endoftext|>{prefix}who?\n"


def test_chat_template_that_hides_the_question_is_an_error() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "hello"
    with pytest.raises(UserError, match="does not show the user's message"):
        make_dialect("autocoa", tokenizer).encode_prompt("who?", [])


@pytest.mark.parametrize("name", ["autocoa", "search-r1"])
def test_search_dialects_refuse_other_tools(name: str) -> None:
    tool = {"type": "function", "function": {"name": "python"}}
    with pytest.raises(UserError, match="can only call `search`, not `python`"):
        make_dialect(name, TOKENIZER).encode_prompt("who?", [tool])


# -- template variables of a recipe -------------------------------------------------------------


def thinking_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer whose template has a thinking switch, as in Qwen3."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template += (
        "{% if add_generation_prompt and enable_thinking is defined and not enable_thinking %}"
        "{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
        "{%- for tool in tools or [] %}{% if loop.first %}{% continue %}{% endif %}{% endfor %}"
        "{% generation %}{% endgeneration %}"
    )
    return tokenizer


@pytest.mark.parametrize("name", BUILTIN_COMPONENTS[ComponentKind.DIALECT])
def test_variables_of_the_template_reach_prompts(name: str) -> None:
    tokenizer = thinking_tokenizer()
    plain = tokenizer.decode(make_dialect(name, tokenizer, "").encode_prompt("who?", []))
    off = make_dialect(name, tokenizer, "", chat_template_kwargs={"enable_thinking": False})
    closed = "" if "<think>" in off.tags else "<think>\n\n</think>\n\n"  # not two thinking parts
    head, _, generation = plain.partition("<|im_start|>assistant\n")
    assert tokenizer.decode(off.encode_prompt("who?", [])) == (
        f"{head}<|im_start|>assistant\n{closed}{generation}"
    )
    on = make_dialect(name, tokenizer, "", chat_template_kwargs={"enable_thinking": True})
    assert tokenizer.decode(on.encode_prompt("who?", [])) == plain


def test_variables_of_the_template_reach_the_frame_of_observations() -> None:
    tokenizer = thinking_tokenizer()
    tokenizer.chat_template += "{{ mood | default('') }}"
    off = make_dialect(
        "hermes", tokenizer, chat_template_kwargs={"enable_thinking": False, "mood": "Calm."}
    )
    assert off.observation_delimiters()[1].endswith("assistant\n<think>\n\n</think>\n\nCalm.")
    off = make_dialect(
        "hermes", thinking_tokenizer(), chat_template_kwargs={"enable_thinking": False}
    )
    assert off.observation_delimiters()[1].endswith(
        "assistant\n"
    )  # hermes writes the thinking part


@pytest.mark.parametrize(
    ("template", "given", "sentence"),
    [
        (None, "enable_thinking", "no chat template, so remove 'chat_template_kwargs'"),
        ("{{ messages }}{{ thinking }}", "thinkin", "no variable 'thinkin'; did you mean 'thinkin"),
        ("{{ messages }}{{ range(3) }}", "thinking", "no variable 'thinking'; remove it"),
        ("{{ messages }}", "messages", "no variable 'messages'; remove it"),
    ],
)
def test_a_variable_that_the_template_does_not_have_is_refused(
    template: str | None, given: str, sentence: str
) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(UserError, match=sentence):
        make_dialect("autocoa", tokenizer, chat_template_kwargs={given: True})


@pytest.mark.parametrize("name", BUILTIN_COMPONENTS[ComponentKind.DIALECT])
def test_a_system_prompt_stands_before_the_question(name: str) -> None:
    dialect = make_dialect(name, TOKENIZER, "", system_prompt="Be brief.")
    text = TOKENIZER.decode(dialect.encode_prompt("who?", []))
    assert text.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nwho?<")
    assert (
        dialect.observation_delimiters() == make_dialect(name, TOKENIZER).observation_delimiters()
    )


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        (None, "no chat template, so it cannot show a system prompt"),
        ("{{ messages[-1].content }}", "does not show a system prompt"),
        ("{{ raise_exception('No system!') }}", r"rejects a system prompt \(No system!\)"),
    ],
)
def test_a_system_prompt_that_would_be_lost_is_refused(template: str | None, sentence: str) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(UserError, match=sentence):
        make_dialect("autocoa", tokenizer, system_prompt="Be brief.")


# -- dialects by name ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["json:loads", "json:JSONDecoder", "fieldcraft.types:UserError"])
def test_what_is_no_dialect_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"'{name}' is not a dialect"):
        make_dialect(name, TOKENIZER)


def test_a_dialect_may_be_of_any_module_but_must_be_whole() -> None:
    assert make_dialect("fieldcraft.dialects.hermes:HermesDialect", TOKENIZER).name == "hermes"
    with pytest.raises(UserError, match=r"is incomplete: implement .*default_instruction"):
        make_dialect("fieldcraft.extensions.methods.tag_dialect:TagDialect", TOKENIZER)
