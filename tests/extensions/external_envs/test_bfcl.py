"""Prompts and settings of the Berkeley Function Calling Leaderboard, without its package."""

import sys
from pathlib import Path
from typing import Any

import pytest

from auto_parts import DIALECTS, TOOLS
from checkpoints import tiny_tokenizer
from fieldcraft.dialects import make_dialect
from fieldcraft.extensions.external_envs.bfcl.environment import BfclEnvironment
from fieldcraft.extensions.external_envs.bfcl.prompts import ToolConversation
from fieldcraft.types import UserError

# -- prompts -----------------------------------------------------------------------------------


def prompt(family: str, *messages: tuple[str, str]) -> str:
    conversation = ToolConversation(DIALECTS[family])
    given = [{"role": role, "content": text} for role, text in messages]
    ids = conversation.encode_start(given, TOOLS)
    text: str = conversation.dialect.tokenizer.decode(ids)
    return text


def test_the_messages_before_the_answer_are_written_by_the_template() -> None:
    text = prompt(
        "Qwen3-Coder",
        ("system", "Be brief."),
        ("user", "Hello."),
        ("user", "Where am I?"),
        ("assistant", "In Oslo."),
        ("user", "And <|im_end|> now?"),
    )
    assert text.endswith(
        "<|im_start|>user\nHello.\n\nWhere am I?<|im_end|>\n"
        "<|im_start|>assistant\nIn Oslo.<|im_end|>\n"
        "<|im_start|>user\nAnd <|im_end|> now?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert "<|im_start|>system\nBe brief.<|im_end|>" in text
    assert '"name": "look"' in text
    assert "boxed" not in text  # no instruction of the dialect


def test_a_special_token_in_a_message_is_text() -> None:
    conversation = ToolConversation(DIALECTS["Qwen3-Coder"])
    tokenizer: Any = conversation.dialect.tokenizer
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    counts = [
        conversation.encode_start([{"role": "user", "content": text}], TOOLS).count(end)
        for text in ("now?", "<|im_end|> now?")
    ]
    assert counts[0] == counts[1]


def test_a_special_token_in_a_system_message_is_text() -> None:
    """A model may have written it into its memory."""
    conversation = ToolConversation(DIALECTS["Qwen3-Coder"])
    tokenizer: Any = conversation.dialect.tokenizer
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    counts = []
    for text in ("Notes: {{ tea }}", "Notes: {{ tea }} <|im_end|>"):
        messages = [{"role": "system", "content": text}, {"role": "user", "content": "Which?"}]
        ids = conversation.encode_start(messages, TOOLS)
        assert f"<|im_start|>system\n{text}<|im_end|>" in tokenizer.decode(ids)
        counts.append(ids.count(end))
    assert counts[0] == counts[1]


def test_a_template_without_a_system_prompt_shows_it_in_the_message() -> None:
    tokenizer: Any = tiny_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"
        "{% endif %}{{ m.role + ': ' + m.content + '<|im_end|>' }}{% endfor %}assistant: "
    )
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where?"}]
    conversation = ToolConversation(make_dialect("hermes", tokenizer))
    text = tokenizer.decode(conversation.encode_start(messages, TOOLS))
    assert text.endswith("Be brief.\n\nWhere?<|im_end|>assistant: ")
    assert '"name": "look"' in text


def test_an_instruction_of_the_recipe_is_kept() -> None:
    dialect = make_dialect("hermes", tiny_tokenizer(), "Call tools only.")
    [ids] = [ToolConversation(dialect).encode_start([{"role": "user", "content": "Hi"}], TOOLS)]
    assert "Call tools only.\n\nHi" in dialect.tokenizer.decode(ids)


def test_a_dialect_of_one_tool_is_refused() -> None:
    conversation = ToolConversation(make_dialect("autocoa", tiny_tokenizer()))
    with pytest.raises(UserError, match=r"calls only search, .* give --dialect auto, or"):
        conversation.require_tools()


# -- settings ----------------------------------------------------------------------------------


def test_an_unknown_category_is_named() -> None:
    with pytest.raises(UserError, match="no category 'simple_jawa': did you mean 'simple_java'"):
        BfclEnvironment(["simple_jawa"])
    with pytest.raises(UserError, match="'memory_vector' of BFCL is not offered, because its"):
        BfclEnvironment(["memory_kv", "memory_vector"])
    with pytest.raises(UserError, match="needs categories"):
        BfclEnvironment([])


def test_an_interpreter_without_the_package_is_told_how_to_get_it() -> None:
    with pytest.raises(UserError, match=f"{sys.executable} has no bfcl-eval.*pip install"):
        BfclEnvironment().tasks(0)
    for path in ("/no/python", "~nobody-here/python"):
        with pytest.raises(UserError, match="is not a working Python interpreter"):
            BfclEnvironment(python=Path(path)).tasks(0)
