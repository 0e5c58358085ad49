"""Chat templates with calls in the formats of model families, written here, and their tokens."""

# -- the Qwen family ---------------------------------------------------------------------------

QWEN = """\
{%- macro turn(role, text) -%}
{{ '<|im_start|>' + role + '\\n' + text + '<|im_end|>\\n' }}
{%- endmacro -%}
{%- if tools %}{{ turn('system', tools | map('tojson') | join('\\n')) }}{% endif -%}
{%- for m in messages -%}
{%- if m.role == 'tool' -%}
{%- if messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif -%}
{{ '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif -%}
{%- elif m.role == 'assistant' -%}
{%- set shown -%}
{%- if m.reasoning_content -%}
{{ '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}
{%- endif -%}
{{ m.content or '' }}
{%- for c in m.tool_calls or [] -%}
{{ '\\n' if not loop.first else '' }}CALL
{%- endfor -%}
{%- endset -%}
{{ turn('assistant', shown) }}
{%- else %}{{ turn(m.role, m.content) }}{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}"""
QWEN_JSON = """{{ '<tool_call>\\n{"name": "' + c.function.name + '", "arguments": ' }}\
{{- c.function.arguments | tojson + '}\\n</tool_call>' }}"""
QWEN_XML = """{{ '<tool_call>\\n<function=' + c.function.name + '>\\n' }}\
{%- for k, v in c.function.arguments.items() -%}
{{ '<parameter=' + k + '>\\n' }}{{ v if v is string else v | tojson }}{{ '\\n</parameter>\\n' }}
{%- endfor %}{{ '</function>\\n</tool_call>' }}"""
QWEN_RESULTS = (
    "\n<|im_start|>user\n<tool_response>\n",
    "\n</tool_response>\n<tool_response>\n",
    "\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
)

# -- the others --------------------------------------------------------------------------------

GLM = """[gMASK]<sop>\
{%- if tools %}{{ '<|system|>\\n' + tools | map('tojson') | join('\\n') }}{% endif -%}
{%- for m in messages -%}
{%- if m.role == 'assistant' -%}
{{ '<|assistant|>\\n<think>' + (m.reasoning_content or '') + '</think>' }}
{{- '\\n' + m.content if m.content else '' }}
{%- for c in m.tool_calls or [] -%}
{{ '\\n<tool_call>' + c.function.name + '\\n' }}
{%- for k, v in c.function.arguments.items() -%}
{{ '<arg_key>' + k + '</arg_key>\\n<arg_value>' }}{{ v if v is string else v | tojson }}
{{- '</arg_value>\\n' }}
{%- endfor %}{{ '</tool_call>' }}
{%- endfor -%}
{%- elif m.role == 'tool' -%}
{{ '<|observation|>' if messages[loop.index0 - 1].role != 'tool' else '' }}
{{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
{%- else %}{{ '<|' + m.role + '|>\\n' + m.content }}{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif -%}"""

LLAMA_TURN = "{{ '<|start_header_id|>' + ROLE + '<|end_header_id|>\\n\\n' }}"
LLAMA_3 = """{{ bos_token }}\
{%- macro head(role) %}{{ '<|start_header_id|>' + role + '<|end_header_id|>\\n\\n' }}{% endmacro -%}
{%- if tools %}{{ head('system') + tools | map('tojson') | join('\\n') + '<|eot_id|>' }}{% endif -%}
{%- for m in messages -%}
{%- if m.tool_calls -%}
{%- if m.tool_calls | length > 1 %}{{ raise_exception('one call in a turn') }}{% endif -%}
{%- set f = m.tool_calls[0].function -%}
{{ head('assistant') + 'PREFIX{"name": "' + f.name + '", "parameters": ' }}
{{- f.arguments | tojson + '}' + 'END' }}
{%- elif m.role == 'tool' %}{{ head('ipython') + m.content | tojson + '<|eot_id|>' }}
{%- else %}{{ head(m.role) + m.content | trim + '<|eot_id|>' }}{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ head('assistant') }}{% endif -%}"""
LLAMA_RESULTS = (
    '<|start_header_id|>ipython<|end_header_id|>\n\n"',
    '"<|eot_id|><|start_header_id|>ipython<|end_header_id|>\n\n"',
    '"<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n',
)

PYTHONIC = """{{ bos_token }}\
{%- macro head(role) %}{{ '<|header_start|>' + role + '<|header_end|>\\n\\n' }}{% endmacro -%}
{%- if tools %}{{ head('system') + tools | map('tojson') | join('\\n') + '<|eot|>' }}{% endif -%}
{%- for m in messages -%}
{%- if m.tool_calls -%}
{{ head('assistant') + '[' }}
{%- for c in m.tool_calls -%}
{{ c.function.name + '(' }}
{%- for k, v in c.function.arguments.items() -%}
{{ k + '=' }}{{ v if v is boolean else v | tojson }}{{ ', ' if not loop.last else '' }}
{%- endfor -%}
{{ ')' }}{{ ', ' if not loop.last else '' }}
{%- endfor -%}
{{ ']<|eot|>' }}
{%- elif m.role == 'tool' %}{{ head('ipython') + m.content + '<|eot|>' }}
{%- else %}{{ head(m.role) + m.content + '<|eot|>' }}{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ head('assistant') }}{% endif -%}"""

MISTRAL = """{{ bos_token }}\
{%- for m in messages -%}
{%- if m.role == 'user' -%}
{%- if tools and loop.last or tools and messages[loop.index0 + 1].role != 'user' -%}
{{ '[AVAILABLE_TOOLS] ' + tools | tojson + '[/AVAILABLE_TOOLS]' }}
{%- endif -%}
{{ '[INST]' + m.content + '[/INST]' }}
{%- elif m.role == 'system' %}{{ '[SYSTEM_PROMPT]' + m.content + '[/SYSTEM_PROMPT]' }}
{%- elif m.role == 'tool' %}RESULT
{%- else -%}
{%- if m.content is string %}{{ m.content }}
{%- else %}{%- for part in m.content or [] -%}
{{ '[THINK]' + part.thinking + '[/THINK]' if part.type == 'thinking' else part.text }}
{%- endfor %}{% endif -%}
{%- if m.tool_calls %}CALLS{% endif -%}
{{ eos_token }}
{%- endif -%}
{%- endfor -%}"""
MISTRAL_LIST = """{{ '[TOOL_CALLS] [' }}{%- for c in m.tool_calls -%}
{{ '{"name": "' + c.function.name + '", "arguments": ' + c.function.arguments | tojson }}
{{- ', "id": "' + c.id + '"}' }}{{ ', ' if not loop.last else ']' }}{%- endfor -%}"""
MISTRAL_NAMED = """{%- for c in m.tool_calls -%}
{{ '[TOOL_CALLS]' + c.function.name + '[ARGS]' + c.function.arguments | tojson }}{%- endfor -%}"""
MISTRAL_WITH_ID = MISTRAL_NAMED.replace("'[ARGS]'", "'[CALL_ID]' + c.id + '[ARGS]'")

DEEPSEEK = """{{ bos_token }}{%- set ns = namespace(told=false) -%}
{%- for m in messages -%}
{%- if m.role == 'user' %}{{ '<｜User｜>' + m.content }}
{%- elif m.role == 'system' %}{{ m.content }}
{%- elif m.role == 'tool' %}RESULT
{%- else -%}
{{ ('<｜tool▁outputs▁end｜>' if OUTPUTS else '') if ns.told else '<｜Assistant｜>LEAD' }}
{{- m.content or '' }}
{%- if m.tool_calls -%}
{{ '<｜tool▁calls▁begin｜>' }}
{%- for c in m.tool_calls -%}
CALL
{%- endfor -%}
{{ '<｜tool▁calls▁end｜>' }}
{%- endif -%}
{{ '<｜end▁of▁sentence｜>' }}
{%- endif -%}
{%- set ns.told = m.role == 'tool' -%}
{%- endfor -%}
{%- if OUTPUTS and ns.told %}{{ '<｜tool▁outputs▁end｜>' }}{% endif -%}
{%- if add_generation_prompt and not ns.told %}{{ '<｜Assistant｜>PREFILL' }}{% endif -%}"""
DEEPSEEK_V3 = (
    DEEPSEEK.replace("LEAD", "")
    .replace("PREFILL", "<think>\\n")
    .replace("OUTPUTS", "true")
    .replace(
        "RESULT",
        "{{ '<｜tool▁outputs▁begin｜>' if not ns.told else '' }}"
        "{{ '<｜tool▁output▁begin｜>' + m.content + '<｜tool▁output▁end｜>' }}",
    )
    .replace(
        "CALL\n",
        "{{ ('\\n' if not loop.first else '') + '<｜tool▁call▁begin｜>' + c.type }}"
        "{{ '<｜tool▁sep｜>' + c.function.name + '\\n```json\\n' + c.function.arguments }}"
        "{{ '\\n```<｜tool▁call▁end｜>' }}\n",
    )
)
DEEPSEEK_V31 = (
    DEEPSEEK.replace("LEAD", "</think>")
    .replace("PREFILL", "</think>")
    .replace("OUTPUTS", "false")
    .replace("RESULT", "{{ '<｜tool▁output▁begin｜>' + m.content + '<｜tool▁output▁end｜>' }}")
    .replace(
        "CALL\n",
        "{{ '<｜tool▁call▁begin｜>' + c.function.name + '<｜tool▁sep｜>' }}"
        "{{ c.function.arguments + '<｜tool▁call▁end｜>' }}\n",
    )
)
DEEPSEEK_TOKENS = tuple(
    f"<｜{name}｜>"
    for name in (
        *("begin▁of▁sentence", "end▁of▁sentence", "User", "Assistant", "tool▁sep"),
        *("tool▁calls▁begin", "tool▁calls▁end", "tool▁call▁begin", "tool▁call▁end"),
        *("tool▁outputs▁begin", "tool▁outputs▁end", "tool▁output▁begin", "tool▁output▁end"),
    )
)

HARMONY = """{{ '<|start|>system<|message|>Valid channels: analysis, commentary, final.<|end|>' }}\
{%- set ns = namespace(tool='') -%}
{%- if tools %}{{ '<|start|>developer<|message|>' + tools | tojson + '<|end|>' }}{% endif -%}
{%- for m in messages -%}
{%- if m.role == 'assistant' -%}
{%- if m.thinking -%}
{{ '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}
{%- endif -%}
{%- if m.tool_calls -%}
{%- set f = m.tool_calls[0].function -%}{%- set ns.tool = f.name -%}
{{ '<|start|>assistantHEADER' + f.arguments | tojson + '<|call|>' }}
{%- else -%}
{{ '<|start|>assistant<|channel|>final<|message|>' + m.content }}
{{- '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}
{%- endif -%}
{%- elif m.role == 'tool' -%}
{{ '<|start|>functions.' + ns.tool + ' to=assistant<|channel|>commentary<|message|>' }}
{{- m.content | tojson + '<|end|>' }}
{%- else %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif -%}"""
HARMONY_TOKENS = tuple(
    f"<|{name}|>"
    for name in ("return", "endoftext", "start", "end", "message", "channel", "constrain", "call")
)

GEMMA_4 = """{{ bos_token }}\
{%- set ns = namespace(told=false) -%}
{%- if tools %}{{ '<|turn>system\\n' }}
{%- for t in tools %}{{ '<|tool>' + t.function | tojson + '<tool|>' }}{% endfor -%}
{{ '<turn|>\\n' }}{% endif -%}
{%- for m in messages -%}
{%- if m.role == 'tool' -%}
{{ '<|tool_response>response:' + m.name + '{value:QQ' + m.content + 'QQ}<tool_response|>' }}
{%- elif m.role == 'assistant' -%}
{%- if not ns.told %}{{ '<|turn>model\\n' }}{% endif -%}
{%- if m.reasoning_content -%}
{{ '<|channel>thought\\n' + m.reasoning_content + '\\n<channel|>' }}
{%- endif -%}
{%- for c in m.tool_calls or [] -%}
{{ '<|tool_call>call:' + c.function.name + '{' }}
{%- for k, v in c.function.arguments | dictsort -%}
{{ k + ':' }}{{ 'QQ' + v + 'QQ' if v is string else v | tojson }}{{ ',' if not loop.last else '' }}
{%- endfor %}{{ '}<tool_call|>' }}
{%- endfor -%}
{{ m.content or '' }}{{ '<turn|>\\n' if not m.tool_calls else '' }}
{%- else %}{{ '<|turn>' + m.role + '\\n' + m.content + '<turn|>\\n' }}{% endif -%}
{%- set ns.told = m.role == 'tool' -%}
{%- endfor -%}
{%- if add_generation_prompt and not ns.told %}{{ '<|turn>model\\n' }}{% endif -%}""".replace(
    "QQ", '<|"|>'
)
FUNCTION_GEMMA = """{{ bos_token }}\
{%- macro head(role) %}{{ '<start_of_turn>' + role + '\\n' }}{% endmacro -%}
{%- set ns = namespace(told=false) -%}
{%- if tools %}{{ head('developer') + tools | tojson + '<end_of_turn>\\n' }}{% endif -%}
{%- for m in messages -%}
{%- if m.role == 'tool' -%}
{{ '<start_function_response>response:' + m.name + '{value:<escape>' + m.content }}
{{- '<escape>}<end_function_response>' }}
{%- elif m.role == 'assistant' -%}
{%- if not ns.told %}{{ head('model') }}{% endif -%}
{%- for c in m.tool_calls or [] -%}
{{ '<start_function_call>call:' + c.function.name + '{' }}
{%- for k, v in c.function.arguments | dictsort -%}
{{ k + ':' }}{{ '<escape>' + v + '<escape>' if v is string else v | tojson }}
{{- ',' if not loop.last else '' }}
{%- endfor %}{{ '}<end_function_call>' }}
{%- endfor -%}
{{ m.content or '' }}{{ '<end_of_turn>\\n' if not m.tool_calls else '' }}
{%- else %}{{ head(m.role) + m.content + '<end_of_turn>\\n' }}{% endif -%}
{%- set ns.told = m.role == 'tool' -%}
{%- endfor -%}
{%- if add_generation_prompt and not ns.told %}{{ head('model') }}{% endif -%}"""
TOOL_CODE = """{{ bos_token }}\
{%- macro head(role) %}{{ '<start_of_turn>' + role + '\\n' }}{% endmacro -%}
{%- for m in messages -%}
{%- if m.role == 'assistant' -%}
{{ head('model') + (m.content or '') }}
{%- if m.tool_calls -%}
{{ '```tool_code' }}
{%- for c in m.tool_calls -%}
{{ '\\n' + c.function.name + '(' }}
{%- for k, v in c.function.arguments.items() -%}
{{ k + '=' }}{{ v if v is boolean else v | tojson }}{{ ', ' if not loop.last else '' }}
{%- endfor %}{{ ')' }}
{%- endfor -%}
{{ '\\n```' }}
{%- endif -%}
{{ '<end_of_turn>\\n' }}
{%- elif m.role == 'tool' -%}
{{ head('user') if messages[loop.index0 - 1].role != 'tool' else '\\n' }}
{{- '```tool_output\\n' + m.content + '\\n```' }}
{{- '<end_of_turn>\\n' if loop.last or messages[loop.index0 + 1].role != 'tool' else '' }}
{%- else -%}
{{ head(m.role) + (tools | tojson + '\\n' if tools and loop.first else '') + m.content }}
{{- '<end_of_turn>\\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ head('model') }}{% endif -%}"""
GEMMA_TOKENS = ("<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>")
MISTRAL_TOKENS = tuple(
    f"[{name}]"
    for name in (
        *("INST", "/INST", "AVAILABLE_TOOLS", "/AVAILABLE_TOOLS", "SYSTEM_PROMPT"),
        *("/SYSTEM_PROMPT", "TOOL_CALLS", "TOOL_RESULTS", "/TOOL_RESULTS", "ARGS", "CALL_ID"),
        *("THINK", "/THINK"),
    )
)
