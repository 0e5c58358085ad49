"""What the dialect `auto` does with the template of each family, as rows of a table."""

import json
from typing import Any

from auto_parts import DIALECTS, NATIVE, TASK, TOOLS, calls_of
from call_families import CALL_FAMILIES
from fieldcraft.dialects.encoding import encode_demonstration
from fieldcraft.dialects.untyped import UntypedText
from fieldcraft.extensions.families.probes import strip_prefill
from fieldcraft.types import Answer, DemoStep, Observation, Thought, ToolCall, Trajectory

HEADER = (
    *("family", "format", "calls in a turn", "end of a turn with calls", "thoughts"),
    *("tools in the prompt", "results", "types of values", "text of the template", "read back"),
)


def tools_of(name: str) -> list[dict[str, Any]]:
    """Return the tools of a demonstration: none for a template that shows none."""
    return [] if name in ("DeepSeek V3", "DeepSeek V3.1") else TOOLS


def demonstrate(name: str) -> Trajectory:
    """Encode calls, their results and an answer; with a thought before the calls if the template
    writes thoughts."""
    calls = calls_of(name)
    steps: list[DemoStep] = [Thought("Where?")] if name in NATIVE else []
    steps += [*calls, *(Observation(f"about {call.tool}") for call in calls)]
    steps += [Thought("So."), Answer("Oslo")]
    return encode_demonstration(TASK, steps, DIALECTS[name], tools_of(name))


def render_by_template(name: str) -> str:
    """Return what the template writes for the same conversation, up to the answer. A thought that
    the template opens there is left to the policy."""
    dialect = DIALECTS[name]
    calls = dialect.number_calls(calls_of(name), 0)
    thought = "Where?" if name in NATIVE else ""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    if thought and dialect.template_format == "mistral":
        message["content"] = [{"type": "thinking", "thinking": thought}]
    elif thought:
        message |= {"reasoning_content": thought, "thinking": thought, "tool_plan": thought}
    is_text = dialect.template_format == "deepseek"
    message["tool_calls"] = [
        {
            "id": call.call_id,
            "type": "function",
            "function": {
                "name": call.tool,
                "arguments": json.dumps(call.arguments) if is_text else call.arguments,
            },
        }
        for call in calls
    ]
    results = [
        {"role": "tool", "content": f"about {c.tool}", "name": c.tool, "tool_call_id": c.call_id}
        for c in calls
    ]
    question = {"role": "user", "content": TASK.question}
    return strip_prefill(dialect.render_conversation([question, message, *results], tools_of(name)))


def make_row(name: str) -> tuple[str, ...]:
    """Return the row of a family."""
    dialect, calls = DIALECTS[name], calls_of(name)
    layout = dialect.layout
    assert layout is not None
    trajectory = demonstrate(name)
    text = "".join(segment.text for segment in trajectory.segments[:-1])
    turns = trajectory.policy_turns
    prompt = dialect.render_conversation([{"role": "user", "content": "?"}], TOOLS)
    parsed = dialect.parse([dialect.render_call(ToolCall("f", {"a": 1}))])
    assert isinstance(parsed, tuple)
    assert isinstance(parsed[0], ToolCall)
    is_untyped = isinstance(parsed[0].arguments["a"], UntypedText)
    is_read = dialect.parse(turns[:1]) == tuple(calls) and dialect.parse(turns) == Answer("Oslo")
    return (
        name,
        layout.call_format.name,
        "one" if layout.is_single else "several",
        f"`{layout.call_end}`",
        f"`{layout.thought_tags[0]}`" + ("" if name in NATIVE else " of ours"),
        "of the template" if TOOLS[0]["function"]["name"] in prompt else "described",
        "JSON strings" if layout.escapes_results else "as they are",
        "by schema" if is_untyped else "written",
        "equal" if text == render_by_template(name) else "differs",
        "yes" if is_read and trajectory.well_formed else "no",
    )


def make_table() -> str:
    """Return the rows of all families."""
    rows = [tuple(c.replace("|", "\\|") for c in make_row(name)) for name in CALL_FAMILIES]
    lines = [" | ".join(HEADER), "|".join(["---"] * len(HEADER)), *map(" | ".join, rows)]
    return "".join(f"|{line}|\n" if "---" in line else f"| {line} |\n" for line in lines)
