"""Empty messages are rejected, except messages of the model, which may contain only calls."""

import json

import pytest

from fieldcraft.extensions.external_envs.messages import parse_turn_request
from fieldcraft.extensions.external_envs.protocol import RequestRejectedError

CALL = {"id": "a", "function": {"name": "search", "arguments": '{"query": "x"}'}}


def body(role: str) -> bytes:
    messages = [
        {"role": "user", "content": "Who?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": role, "content": None, "tool_call_id": "a", "name": "search"},
    ]
    return json.dumps({"model": "m", "messages": messages}).encode()


@pytest.mark.parametrize("role", ["system", "developer", "user", "tool", "function"])
def test_a_message_without_a_content_is_refused(role: str) -> None:
    """A missing result differs from an empty one."""
    with pytest.raises(RequestRejectedError, match="needs a content"):
        parse_turn_request(body(role))
