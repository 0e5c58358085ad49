"""Families that write calls in blocks of tags: Kimi K2, MiniMax M2, LFM2, Cohere Command, DeepSeek
V3.2. The templates are written here."""

from call_family import CallFamily
from families import IM, Family

KIMI = """\
{%- macro head(kind, role) %}{{ '<|im_' + kind + '|>' + role + '<|im_middle|>' }}{% endmacro -%}
{%- if tools %}{{ head('system', 'tool_declare') + tools | tojson + '<|im_end|>' }}{% endif -%}
{%- for m in messages -%}
{%- if m.role == 'tool' -%}
{{ head('system', m.name) + '## Return of ' + m.tool_call_id + '\\n' + m.content }}
{%- elif m.role == 'assistant' -%}
{{ head('assistant', m.role) }}THOUGHT{{ m.content or '' }}
{%- if m.tool_calls -%}
{{ '<|tool_calls_section_begin|>' }}
{%- for c in m.tool_calls -%}
{{ '<|tool_call_begin|>' + c.id + '<|tool_call_argument_begin|>' }}
{{- c.function.arguments | tojson + '<|tool_call_end|>' }}
{%- endfor -%}
{{ '<|tool_calls_section_end|>' }}
{%- endif -%}
{%- else %}{{ head('user' if m.role == 'user' else 'system', m.role) + m.content }}{% endif -%}
{{ '<|im_end|>' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ head('assistant', 'assistant') }}{% endif -%}"""
KIMI_THOUGHT = "{{ '<think>' + (m.reasoning_content or '') + '</think>' }}"
KIMI_TOKENS = (
    *("[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>"),
    *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"),
    *("<|tool_call_argument_begin|>", "<|tool_call_end|>"),
)

MINIMAX = """{{ ']~!b[]~b]system\\nYou help.' }}\
{%- if tools %}{{ '\\n' + tools | map('tojson') | join('\\n') }}{% endif %}{{ '[e~[\\n' }}
{%- for m in messages -%}
{%- if m.role == 'tool' -%}
{{ ']~b]tool' if messages[loop.index0 - 1].role != 'tool' else '' }}
{{- '\\n<response>' + m.content + '</response>' }}
{{- '[e~[\\n' if loop.last or messages[loop.index0 + 1].role != 'tool' else '' }}
{%- elif m.role == 'assistant' -%}
{{ ']~b]ai\\n' }}
{%- if m.reasoning_content -%}
{{ '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}
{%- endif -%}
{{ m.content or '' }}
{%- if m.tool_calls -%}
{{ '\\n<minimax:tool_call>\\n' }}
{%- for c in m.tool_calls -%}
{{ '<invoke name="' + c.function.name + '">\\n' }}
{%- for k, v in c.function.arguments.items() -%}
{{ '<parameter name="' + k + '">' }}{{ v if v is string else v | tojson }}{{ '</parameter>\\n' }}
{%- endfor -%}
{{ '</invoke>\\n' }}
{%- endfor -%}
{{ '</minimax:tool_call>' }}
{%- endif -%}
{{ '[e~[\\n' }}
{%- else %}{{ ']~b]' + m.role + '\\n' + m.content + '[e~[\\n' }}{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ ']~b]ai\\n<think>\\n' }}{% endif -%}"""

LFM = """{{ bos_token }}\
{%- macro turn(role, text) -%}
{{ '<|im_start|>' + role + '\\n' + text + '<|im_end|>\\n' }}
{%- endmacro -%}
{%- if tools %}{{ turn('system', tools | map('tojson') | join('\\n')) }}{% endif -%}
{%- for m in messages -%}
{%- set shown -%}
{{ '<think>' + m.thinking + '</think>' if m.thinking else '' }}
{{- RESULT if m.role == 'tool' else m.content or '' }}
{%- if m.tool_calls -%}
{{ '<|tool_call_start|>[' }}
{%- for c in m.tool_calls -%}
{{ c.function.name + '(' }}
{%- for k, v in c.function.arguments.items() -%}
{{ k + '=' }}{{ "'" + VALUE + "'" if v is string else v | OTHER }}
{{- ', ' if not loop.last else '' }}
{%- endfor -%}
{{ ')' }}{{ ', ' if not loop.last else '' }}
{%- endfor -%}
{{ ']<|tool_call_end|>' }}
{%- endif -%}
{%- endset -%}
{{ turn(m.role, shown) }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}"""
LFM_2 = (
    LFM.replace("{{ '<think>' + m.thinking + '</think>' if m.thinking else '' }}\n{{-", "{{")
    .replace("RESULT", "'<|tool_response_start|>' + m.content + '<|tool_response_end|>'")
    .replace("VALUE", "v | replace('\\\\', '\\\\\\\\') | replace('\\n', '\\\\n')")
    .replace("OTHER", "tojson")
)
LFM_25 = LFM.replace("RESULT", "m.content").replace("VALUE", "v").replace("OTHER", "string")
LFM_TOKENS = (
    *("<|startoftext|>", *IM, "<|tool_call_start|>", "<|tool_call_end|>"),
    *("<|tool_response_start|>", "<|tool_response_end|>"),
)

COHERE = """{{ bos_token }}\
{%- macro head(role) %}{{ '<|START_OF_TURN_TOKEN|><|' + role + '_TOKEN|>' }}{% endmacro -%}
{%- set end, ns = '<|END_OF_TURN_TOKEN|>', namespace(calls=0, results=0) -%}
{%- if tools %}{{ head('SYSTEM') + tools | map('tojson') | join('\\n') + end }}{% endif -%}
{%- for m in messages -%}
{%- if m.role == 'tool' -%}
{%- if messages[loop.index0 - 1].role != 'tool' -%}
{{ head('SYSTEM') + '<|START_TOOL_RESULT|>[\\n' }}
{%- endif -%}
{{ '    {\\n        "tool_call_id": "' ~ ns.results }}
{{- '",\\n        "results": {\\n            "0": ' + RESULT | tojson }}
{{- '\\n        },\\n        "is_error": null\\n    }' }}
{%- set ns.results = ns.results + 1 -%}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}
{{ '\\n]<|END_TOOL_RESULT|>' + end }}
{%- else %}{{ ',\\n' }}{% endif -%}
{%- elif m.tool_calls -%}
{{ head('CHATBOT') + '<|START_THINKING|>' + (m.tool_plan or '') + '<|END_THINKING|>' }}
{{- '<|START_ACTION|>[\\n' }}
{%- for c in m.tool_calls -%}
{{ '    {"tool_call_id": "' ~ ns.calls ~ '", "tool_name": "' + c.function.name }}
{{- '", "parameters": ' + c.function.arguments | tojson + '}' }}
{{- ',\\n' if not loop.last else '\\n' }}
{%- set ns.calls = ns.calls + 1 -%}
{%- endfor -%}
{{ ']<|END_ACTION|>' + end }}
{%- elif m.role == 'assistant' -%}
{{ head('CHATBOT') + ANSWER + end }}
{%- else %}{{ head(m.role | upper) + m.content + end }}{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ head('CHATBOT') + PREFILL }}{% endif -%}"""
COHERE_THOUGHT = "('<|START_THINKING|>' + (m.tool_plan or '') + '<|END_THINKING|>')"
COHERE_ANSWER = "'<|START_{0}|>' + m.content + '<|END_{0}|>'"
COHERE_TOKENS = (
    "<BOS_TOKEN>",
    *(f"<|{side}_OF_TURN_TOKEN|>" for side in ("START", "END")),
    *(f"<|{role}_TOKEN|>" for role in ("USER", "CHATBOT", "SYSTEM")),
    *(
        f"<|{side}_{part}|>"
        for part in ("THINKING", "ACTION", "TOOL_RESULT", "RESPONSE")
        for side in ("START", "END")
    ),
)
COHERE_PLAIN_TOKENS = ("<|START_TEXT|>", "<|END_TEXT|>")

DSML = """{{ bos_token }}\
{%- if tools %}{{ tools | map('tojson') | join('\\n') }}{% endif -%}
{%- for m in messages -%}
{%- if m.role == 'user' %}{{ '<｜User｜>' + m.content + '<｜Assistant｜><think>' }}
{%- elif m.role == 'tool' -%}
RESULTS
{%- elif m.role == 'assistant' -%}
{{ (m.reasoning_content or '') + '</think>' + (m.content or '') }}
{%- if m.tool_calls -%}
{{ '\\n\\n<｜DSML｜BLOCK>\\n' }}
{%- for c in m.tool_calls -%}
{{ '<｜DSML｜invoke name="' + c.function.name + '">\\n' }}
{%- for k, v in c.function.arguments.items() -%}
{{ '<｜DSML｜parameter name="' + k + '" string="' + (v is string) | string | lower + '">' }}
{{- v if v is string else v | tojson }}{{ '</｜DSML｜parameter>\\n' }}
{%- endfor -%}
{{ '</｜DSML｜invoke>\\n' }}
{%- endfor -%}
{{ '</｜DSML｜BLOCK>' }}
{%- endif -%}
{{ '<｜end▁of▁sentence｜>' }}
{%- else %}{{ m.content }}{% endif -%}
{%- endfor -%}"""
DSML_RESULTS = """\
{{ '\\n\\n<function_results>' if messages[loop.index0 - 1].role != 'tool' else '' }}
{{- '\\n<result>' + m.content + '</result>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}
{{ '\\n</function_results>\\n\\n<think>' }}
{%- endif -%}"""
DSML_TOOL_RESULTS = """\
{{ '<｜User｜>' if messages[loop.index0 - 1].role != 'tool' else '\\n\\n' }}
{{- '<tool_result>' + m.content + '</tool_result>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}
{{ '<｜Assistant｜><think>' }}
{%- endif -%}"""
DSML_TOKENS = (
    *("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"),
    "｜DSML｜",
)


def kimi(thought: str) -> Family:
    template = KIMI.replace("THOUGHT", thought)
    return Family(template, KIMI_TOKENS, "<|im_end|>", ("<|im_end|>", "[EOS]"), "<|im_end|>")


def lfm(template: str) -> Family:
    end = "<|im_end|>"
    return Family(template, LFM_TOKENS, end, (end,), end, "<|startoftext|>")


KIMI_CALLS = (
    "<|tool_calls_section_begin|>"
    "<|tool_call_begin|>functions.search:0<|tool_call_argument_begin|>"
    '{"query": "Oslo"}<|tool_call_end|>'
    "<|tool_call_begin|>functions.look:1<|tool_call_argument_begin|>"
    '{"page": "Bergen"}<|tool_call_end|><|tool_calls_section_end|>'
)
KIMI_RESULTS = (
    "<|im_system|>search<|im_middle|>## Return of functions.search:0\n",
    "<|im_end|><|im_system|>look<|im_middle|>## Return of functions.look:1\n",
    "<|im_end|><|im_assistant|>assistant<|im_middle|>",
)
LFM_CALLS = "<|tool_call_start|>[search(query='Oslo'), look(page='Bergen')]<|tool_call_end|>"
COHERE_CALLS = (
    '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "search", "parameters": '
    '{"query": "Oslo"}},\n    {"tool_call_id": "1", "tool_name": "look", "parameters": '
    '{"page": "Bergen"}}\n]<|END_ACTION|>'
)


def cohere(
    thought: str, answer: str, result: str, frame: tuple[str, str], prefill: str = ""
) -> CallFamily:
    """Return a family of Cohere. `frame`: text around a result, which is in a list with ids."""
    template = COHERE.replace("THOUGHT", thought, 1).replace("ANSWER", answer)
    template = template.replace("RESULT |", f"{result} |").replace("PREFILL", repr(prefill))
    end, (before, after) = "<|END_OF_TURN_TOKEN|>", frame
    first, second = (
        f'    {{\n        "tool_call_id": "{n}",\n        "results": {{\n            "0": {before}'
        for n in (0, 1)
    )
    last = f'{after}\n        }},\n        "is_error": null\n    }}'
    results = (
        f"<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|><|START_TOOL_RESULT|>[\n{first}",
        f"{last},\n{second}",
        f"{last}\n]<|END_TOOL_RESULT|>{end}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
    )
    family = Family(template, COHERE_TOKENS, end, (end,), end, "<BOS_TOKEN>", COHERE_PLAIN_TOKENS)
    thought = "<|START_THINKING|>T<|END_THINKING|>"
    return CallFamily(family, "cohere", COHERE_CALLS, end, results, thought=thought)


def dsml(template: str, block: str, results: tuple[str, str, str]) -> CallFamily:
    """Return a family of DeepSeek whose calls are in a block of this name."""
    end = "<｜end▁of▁sentence｜>"
    template = template.replace("BLOCK", block)
    calls = (
        f'\n\n<｜DSML｜{block}>\n<｜DSML｜invoke name="search">\n'
        '<｜DSML｜parameter name="query" string="true">Oslo</｜DSML｜parameter>\n'
        '</｜DSML｜invoke>\n<｜DSML｜invoke name="look">\n'
        '<｜DSML｜parameter name="page" string="true">Bergen</｜DSML｜parameter>\n'
        f"</｜DSML｜invoke>\n</｜DSML｜{block}>"
    )
    family = Family(template, DSML_TOKENS, end, (end,), end, "<｜begin▁of▁sentence｜>")
    name = {"function_calls": "deepseek-v3.2", "tool_calls": "deepseek-v4"}[block]
    return CallFamily(family, name, calls, end, results, thought="<think>T</think>")


TAGGED_CALL_FAMILIES = {
    "Kimi K2": CallFamily(kimi(""), "kimi", KIMI_CALLS, "<|im_end|>", KIMI_RESULTS),
    "Kimi K2 Thinking": CallFamily(
        kimi(KIMI_THOUGHT),
        "kimi",
        KIMI_CALLS,
        "<|im_end|>",
        KIMI_RESULTS,
        thought="<think>T</think>",
    ),
    "MiniMax M2": CallFamily(
        Family(MINIMAX, ("]~!b[", "]~b]", "[e~["), "[e~[", ("[e~[",), "[e~["),
        "minimax",
        '\n<minimax:tool_call>\n<invoke name="search">\n'
        '<parameter name="query">Oslo</parameter>\n</invoke>\n<invoke name="look">\n'
        '<parameter name="page">Bergen</parameter>\n</invoke>\n</minimax:tool_call>',
        "[e~[",
        ("\n]~b]tool\n<response>", "</response>\n<response>", "</response>[e~[\n]~b]ai\n"),
    ),
    "LFM2": CallFamily(
        lfm(LFM_2),
        "lfm",
        LFM_CALLS,
        "<|im_end|>",
        (
            "\n<|im_start|>tool\n<|tool_response_start|>",
            "<|tool_response_end|><|im_end|>\n<|im_start|>tool\n<|tool_response_start|>",
            "<|tool_response_end|><|im_end|>\n<|im_start|>assistant\n",
        ),
    ),
    "LFM2.5": CallFamily(
        lfm(LFM_25),
        "lfm",
        LFM_CALLS,
        "<|im_end|>",
        (
            "\n<|im_start|>tool\n",
            "<|im_end|>\n<|im_start|>tool\n",
            "<|im_end|>\n<|im_start|>assistant\n",
        ),
        thought="<think>T</think>",
    ),
    "Command R7B": cohere(
        COHERE_THOUGHT, COHERE_ANSWER.format("RESPONSE"), "m.content", ('"', '"')
    ),
    "Command A": cohere(
        f"({COHERE_THOUGHT} if m.tool_plan else '')",
        COHERE_ANSWER.format("RESPONSE"),
        "{'content': m.content}",
        ('{"content": "', '"}'),
    ),
    "Command A, text tags": cohere(
        COHERE_THOUGHT,
        f"'<|START_THINKING|><|END_THINKING|>' + {COHERE_ANSWER.format('TEXT')}",
        "{'content': m.content}",
        ('{"content": "', '"}'),
        prefill="<|START_THINKING|>",
    ),
    "DeepSeek V3.2": dsml(
        DSML.replace("RESULTS", DSML_RESULTS),
        "function_calls",
        (
            "\n\n<function_results>\n<result>",
            "</result>\n<result>",
            "</result>\n</function_results>\n\n",
        ),
    ),
    "DeepSeek V4": dsml(
        DSML.replace("RESULTS", DSML_TOOL_RESULTS),
        "tool_calls",
        (
            "<｜User｜><tool_result>",
            "</tool_result>\n\n<tool_result>",
            "</tool_result><｜Assistant｜>",
        ),
    ),
}
