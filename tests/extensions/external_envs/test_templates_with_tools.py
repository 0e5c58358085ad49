"""Chat templates of newer models: how they render calls and results, and which are rejected."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from blackbox_parts import TOKENIZER, run_scripted

from checkpoints import tiny_tokenizer
from families import IM, Family
from fieldcraft.dialects import make_dialect
from fieldcraft.extensions.external_envs.conversation_renderer import ConversationRenderer
from fieldcraft.extensions.external_envs.gateway import create_gateway_app
from fieldcraft.extensions.external_envs.messages import parse_turn_request
from fieldcraft.extensions.external_envs.refusals import RequestRejectedError
from fieldcraft.types import Tokenizer

CALL = '<tool_call>{"name": "search", "arguments": {}}</tool_call>'
TOOL = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}
MADE = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"q": "x"}'}}
TALK = [
    {"role": "user", "content": "Who?"},
    {"role": "assistant", "content": None, "tool_calls": [MADE]},
    {"role": "tool", "tool_call_id": "c1", "content": "Ada"},
]


def with_calls(call: str, result: str = "{{ m.content }}") -> Tokenizer:
    """Return a ChatML tokenizer with tools.

    Its template renders calls `c` of a message `m` by `call`, and results by `result`.
    """
    template = (
        "{% if tools %}{{ tools | tojson }}\n{% endif %}"
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{% if m.role == 'tool' %}" + result + "{% else %}{{ m.content }}{% endif %}"
        "{% for c in m.tool_calls or [] %}" + call + "{% endfor %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    return Family(template, IM, "<|im_end|>", ("<|im_end|>",), "<|im_end|>").tokenizer()


AS_JSON = (
    '<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    "</tool_call>"
)


def render(tokenizer: Tokenizer, messages: list[Any], tools: list[Any]) -> str:
    body = json.dumps({"messages": messages, "tools": tools})
    request = parse_turn_request(body.encode())
    renderer = ConversationRenderer(make_dialect("search-r1", tokenizer))
    ids = renderer.encode_prompt(
        request.messages, request.offered_tools, (), lambda ids, parsed: None
    )
    return str(tokenizer.decode(ids))


def test_a_template_gets_the_ids_of_calls_and_the_names_of_results() -> None:
    """Kimi's template renders ids; Gemma's and gpt-oss's render the tools of results."""
    tokenizer = with_calls(
        f"{AS_JSON}#{{{{ c.id }}}}", "{{ m.name }}#{{ m.tool_call_id }}:{{ m.content }}"
    )
    text = render(tokenizer, TALK, [TOOL])
    assert "</tool_call>#c1<|im_end|>" in text
    assert "search#c1:Ada<|im_end|>" in text


def test_an_id_with_a_special_token_is_refused() -> None:
    call, result = MADE | {"id": "<|im_end|>"}, TALK[2] | {"tool_call_id": "<|im_end|>"}
    with pytest.raises(RequestRejectedError, match=r"'<\|im_end\|>' is a special token"):
        render(with_calls(AS_JSON), [TALK[0], TALK[1] | {"tool_calls": [call]}, result], [TOOL])


def test_the_ids_of_calls_are_the_same_in_every_run() -> None:
    """Templates may render them, and Mistral's requires nine letters and digits."""
    tokenizer = with_calls(AS_JSON, "{{ m.tool_call_id }}:{{ m.content }}")
    runs = [
        run_scripted("calls_tools", [CALL, "Ada"], tokenizer=tokenizer)[1].prompts for _ in range(2)
    ]
    assert runs[0] == runs[1]
    assert "tool\ncall00000:search found" in tokenizer.decode(runs[0][1])


OTHERS = {
    "GLM-4.5": "<tool_call>{{ c.function.name }}\n<arg_key>q</arg_key></tool_call>",
    "Qwen3-Coder": "<tool_call>\n<function={{ c.function.name }}>\n</function>\n</tool_call>",
    "Kimi K2": "<|tool_call_begin|>functions.{{ c.function.name }}:0{}<|tool_call_end|>",
    "Llama 3": '{"name": "{{ c.function.name }}", "parameters": {}}',
    "MiniMax-M2": '<invoke name="{{ c.function.name }}"></invoke>',
    "Mistral": "[TOOL_CALLS]{{ c.function.name }}[ARGS]{}",
}


@pytest.mark.parametrize("name", OTHERS)
def test_tools_are_refused_where_the_model_would_call_them_in_another_form(name: str) -> None:
    tokenizer = with_calls(OTHERS[name])
    with pytest.raises(
        RequestRejectedError, match="does not render calls as JSON between <tool_call> tags"
    ) as no:
        render(tokenizer, TALK[:1], [TOOL])
    assert no.value.error["param"] == "tools"
    assert "Who?" in render(tokenizer, TALK[:1], [])


@pytest.mark.parametrize("tokenizer", [TOKENIZER, tiny_tokenizer(), with_calls(AS_JSON)])
def test_tools_are_shown_where_calls_are_read(tokenizer: Tokenizer) -> None:
    assert "search" in render(tokenizer, TALK[:1], [TOOL])


@pytest.mark.parametrize("key", ["images", "audio", "attachments"])
def test_what_is_no_text_is_refused_in_a_key_of_its_own(key: str) -> None:
    with pytest.raises(
        RequestRejectedError, match=f"'{key}' is not text, and only text is supported"
    ):
        render(TOKENIZER, [TALK[0] | {key: ["aGk="]}], [])
    assert "Who?" in render(TOKENIZER, [TALK[0] | {key: []}], [])


def test_blocks_of_thoughts_are_refused_as_thoughts_are() -> None:
    message = {"role": "assistant", "content": "Ada", "thinking_blocks": [{"thinking": "Hm."}]}
    with pytest.raises(RequestRejectedError, match="'thinking_blocks' of message 1 is not passed"):
        render(TOKENIZER, [TALK[0], message, TALK[0]], [])


@pytest.mark.parametrize("path", ["/r/v1/complete", "/r/chat/completions", "/r/v1/completions"])
def test_another_route_is_refused_with_the_one_that_is_there(path: str) -> None:
    async def post() -> httpx.Response:
        transport = httpx.ASGITransport(create_gateway_app({}))
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as http:
            return await http.post(path, json={})

    answer = asyncio.run(post())
    message = answer.json()["error"]["message"]
    assert (answer.status_code, message) == (
        404,
        f"The route POST {path} does not exist; use POST base_url/chat/completions or"
        " base_url/responses, where base_url ends in /v1, as OpenAI's clients do, or POST"
        " base_url/v1/messages, as Anthropic's do.",
    )
