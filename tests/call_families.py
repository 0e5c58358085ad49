"""Model families with calls in their chat templates, and literal texts of what they write."""

from call_family import CallFamily
from call_templates import (
    DEEPSEEK_TOKENS,
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    FUNCTION_GEMMA,
    GEMMA_4,
    GEMMA_TOKENS,
    GLM,
    HARMONY,
    HARMONY_TOKENS,
    LLAMA_3,
    LLAMA_RESULTS,
    MISTRAL,
    MISTRAL_LIST,
    MISTRAL_NAMED,
    MISTRAL_TOKENS,
    MISTRAL_WITH_ID,
    PYTHONIC,
    QWEN,
    QWEN_JSON,
    QWEN_RESULTS,
    QWEN_XML,
    TOOL_CODE,
)
from families import IM, LLAMA, Family
from tagged_call_families import TAGGED_CALL_FAMILIES


def qwen(call: str) -> Family:
    return Family(QWEN.replace("CALL", call), IM, "<|im_end|>", ("<|im_end|>",), "<|im_end|>")


def mistral(calls: str, result: str) -> Family:
    template = MISTRAL.replace("CALLS{%", f"{calls}{{%").replace("RESULT", result)
    return Family(template, ("<s>", "</s>", *MISTRAL_TOKENS), "</s>", ("</s>",), "</s>", "<s>")


def llama(prefix: str, end: str) -> Family:
    template = LLAMA_3.replace("PREFIX", prefix).replace("END", end)
    special = (*LLAMA, "<|eot_id|>", "<|eom_id|>", "<|python_tag|>")
    stops = ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>")
    return Family(template, special, "<|eot_id|>", stops, "<|eot_id|>", LLAMA[0])


def deepseek(template: str) -> Family:
    end = "<｜end▁of▁sentence｜>"
    return Family(template, DEEPSEEK_TOKENS, end, (end,), end, "<｜begin▁of▁sentence｜>")


def harmony(header: str) -> Family:
    template = HARMONY.replace("HEADER", header)
    stops = ("<|return|>", "<|endoftext|>", "<|call|>")
    return Family(template, HARMONY_TOKENS, "<|return|>", stops, "<|return|>")


def gemma(template: str, *tokens: str) -> Family:
    stops = ("<eos>", "<end_of_turn>")
    special = (*GEMMA_TOKENS, *tokens)
    return Family(template, special, "<eos>", stops, "<end_of_turn>", "<bos>")


PLAIN_RESULT = "{{ '[TOOL_RESULTS]' + m.content + '[/TOOL_RESULTS]' }}"
HARMONY_RESULTS = (
    '<|start|>functions.search to=assistant<|channel|>commentary<|message|>"',
    '"<|end|><|start|>functions.search to=assistant<|channel|>commentary<|message|>"',
    '"<|end|><|start|>assistant',
)
HARMONY_THOUGHT = "<|channel|>analysis<|message|>T<|end|><|start|>assistant"
CALL_FAMILIES = {
    "Qwen3-Coder": CallFamily(
        qwen(QWEN_XML),
        "qwen3-coder",
        "<tool_call>\n<function=search>\n<parameter=query>\nOslo\n</parameter>\n</function>\n"
        "</tool_call>\n<tool_call>\n<function=look>\n<parameter=page>\nBergen\n</parameter>\n"
        "</function>\n</tool_call>",
        "<|im_end|>",
        QWEN_RESULTS,
    ),
    "GLM-4.5": CallFamily(
        Family(
            GLM,
            (
                *("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>"),
                *("<|assistant|>", "<|observation|>"),
            ),
            "<|endoftext|>",
            ("<|endoftext|>", "<|user|>", "<|observation|>"),
            "<|user|>",
        ),
        "glm",
        "<tool_call>search\n<arg_key>query</arg_key>\n<arg_value>Oslo</arg_value>\n</tool_call>\n"
        "<tool_call>look\n<arg_key>page</arg_key>\n<arg_value>Bergen</arg_value>\n</tool_call>",
        "<|observation|>",
        (
            "\n<tool_response>\n",
            "\n</tool_response>\n<tool_response>\n",
            "\n</tool_response><|assistant|>",
        ),
        thought="\n<think>T</think>\n",
    ),
    "Llama 3.1": CallFamily(
        llama("", "<|eot_id|>"),
        "llama",
        '{"name": "search", "parameters": {"query": "Oslo"}}',
        "<|eot_id|>",
        LLAMA_RESULTS,
        is_single=True,
    ),
    "Llama 3.1, python tag": CallFamily(
        llama("<|python_tag|>", "<|eom_id|>"),
        "llama",
        '<|python_tag|>{"name": "search", "parameters": {"query": "Oslo"}}',
        "<|eom_id|>",
        LLAMA_RESULTS,
        is_single=True,
    ),
    "Llama 4": CallFamily(
        Family(
            PYTHONIC,
            (*LLAMA[:2], "<|header_start|>", "<|header_end|>", "<|eot|>", "<|eom|>"),
            "<|eot|>",
            ("<|end_of_text|>", "<|eom|>", "<|eot|>"),
            "<|eot|>",
            LLAMA[0],
        ),
        "pythonic",
        '[search(query="Oslo"), look(page="Bergen")]',
        "<|eot|>",
        (
            "<|header_start|>ipython<|header_end|>\n\n",
            "<|eot|><|header_start|>ipython<|header_end|>\n\n",
            "<|eot|><|header_start|>assistant<|header_end|>\n\n",
        ),
    ),
    "Mistral 7B": CallFamily(
        mistral(
            MISTRAL_LIST,
            """{{ '[TOOL_RESULTS] {"content": ' + m.content + ', "call_id": "' }}"""
            """{{ m.tool_call_id + '"}[/TOOL_RESULTS]' }}""",
        ),
        "mistral",
        '[TOOL_CALLS] [{"name": "search", "arguments": {"query": "Oslo"}, "id": "call00001"}, '
        '{"name": "look", "arguments": {"page": "Bergen"}, "id": "call00002"}]',
        "</s>",
        (
            '[TOOL_RESULTS] {"content": ',
            ', "call_id": "call00001"}[/TOOL_RESULTS][TOOL_RESULTS] {"content": ',
            ', "call_id": "call00002"}[/TOOL_RESULTS]',
        ),
        thought="[THINK]T[/THINK]",
    ),
    "Mistral Small 3.2": CallFamily(
        mistral(
            MISTRAL_WITH_ID,
            "{{ '[TOOL_RESULTS]' + m.tool_call_id + '[TOOL_CONTENT]' + m.content }}"
            "{{ '[/TOOL_RESULTS]' }}",
        ),
        "mistral",
        '[TOOL_CALLS]search[CALL_ID]call00001[ARGS]{"query": "Oslo"}'
        '[TOOL_CALLS]look[CALL_ID]call00002[ARGS]{"page": "Bergen"}',
        "</s>",
        (
            "[TOOL_RESULTS]call00001[TOOL_CONTENT]",
            "[/TOOL_RESULTS][TOOL_RESULTS]call00002[TOOL_CONTENT]",
            "[/TOOL_RESULTS]",
        ),
        thought="[THINK]T[/THINK]",
    ),
    "Magistral": CallFamily(
        mistral(MISTRAL_NAMED, PLAIN_RESULT),
        "mistral",
        '[TOOL_CALLS]search[ARGS]{"query": "Oslo"}[TOOL_CALLS]look[ARGS]{"page": "Bergen"}',
        "</s>",
        ("[TOOL_RESULTS]", "[/TOOL_RESULTS][TOOL_RESULTS]", "[/TOOL_RESULTS]"),
        thought="[THINK]T[/THINK]",
    ),
    "DeepSeek V3": CallFamily(
        deepseek(DEEPSEEK_V3),
        "deepseek",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>search\n```json\n"
        '{"query": "Oslo"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function'
        '<｜tool▁sep｜>look\n```json\n{"page": "Bergen"}\n```<｜tool▁call▁end｜>'
        "<｜tool▁calls▁end｜>",
        "<｜end▁of▁sentence｜>",
        (
            "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>",
            "<｜tool▁output▁end｜><｜tool▁output▁begin｜>",
            "<｜tool▁output▁end｜><｜tool▁outputs▁end｜>",
        ),
    ),
    "DeepSeek V3.1": CallFamily(
        deepseek(DEEPSEEK_V31),
        "deepseek",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>search<｜tool▁sep｜>{"query": "Oslo"}'
        '<｜tool▁call▁end｜><｜tool▁call▁begin｜>look<｜tool▁sep｜>{"page": "Bergen"}'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "<｜end▁of▁sentence｜>",
        (
            "<｜tool▁output▁begin｜>",
            "<｜tool▁output▁end｜><｜tool▁output▁begin｜>",
            "<｜tool▁output▁end｜>",
        ),
    ),
    "gpt-oss": CallFamily(
        harmony(" to=functions.' + f.name + '<|channel|>commentary json<|message|>"),
        "gpt-oss",
        ' to=functions.search<|channel|>commentary json<|message|>{"query": "Oslo"}',
        "<|call|>",
        HARMONY_RESULTS,
        thought=HARMONY_THOUGHT,
        is_single=True,
    ),
    "gpt-oss, recipient in the channel": CallFamily(
        harmony("<|channel|>commentary to=functions.' + f.name + ' <|constrain|>json<|message|>"),
        "gpt-oss",
        '<|channel|>commentary to=functions.search <|constrain|>json<|message|>{"query": "Oslo"}',
        "<|call|>",
        HARMONY_RESULTS,
        thought=HARMONY_THOUGHT,
        is_single=True,
    ),
    "Gemma 4": CallFamily(
        Family(
            GEMMA_4,
            (
                *("<eos>", "<bos>", "<|turn>", "<turn|>", "<|tool>", "<tool|>", "<|tool_call>"),
                *("<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>'),
                *("<|channel>", "<channel|>"),
            ),
            "<eos>",
            ("<eos>", "<turn|>", "<|tool_response>"),
            "<turn|>",
            "<bos>",
        ),
        "gemma",
        '<|tool_call>call:search{query:<|"|>Oslo<|"|>}<tool_call|>'
        '<|tool_call>call:look{page:<|"|>Bergen<|"|>}<tool_call|>',
        "<|tool_response>",
        (
            'response:search{value:<|"|>',
            '<|"|>}<tool_response|><|tool_response>response:look{value:<|"|>',
            '<|"|>}<tool_response|>',
        ),
        thought="<|channel>thought\nT\n<channel|>",
    ),
    "FunctionGemma": CallFamily(
        gemma(
            FUNCTION_GEMMA,
            *("<start_function_call>", "<end_function_call>", "<start_function_response>"),
            *("<end_function_response>", "<escape>"),
        ),
        "gemma",
        "<start_function_call>call:search{query:<escape>Oslo<escape>}<end_function_call>"
        "<start_function_call>call:look{page:<escape>Bergen<escape>}<end_function_call>",
        "<start_function_response>",
        (
            "response:search{value:<escape>",
            "<escape>}<end_function_response><start_function_response>response:look{value:<escape>",
            "<escape>}<end_function_response>",
        ),
    ),
    "Gemma 3": CallFamily(
        gemma(TOOL_CODE),
        "tool-code",
        '```tool_code\nsearch(query="Oslo")\nlook(page="Bergen")\n```',
        "<end_of_turn>",
        (
            "\n<start_of_turn>user\n```tool_output\n",
            "\n```\n```tool_output\n",
            "\n```<end_of_turn>\n<start_of_turn>model\n",
        ),
    ),
    **TAGGED_CALL_FAMILIES,
}
# The family whose format is the dialect hermes.
QWEN_HERMES = qwen(QWEN_JSON)
