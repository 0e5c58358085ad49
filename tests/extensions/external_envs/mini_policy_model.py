"""Model class for mini-SWE-agent that starts in 0.3 s: litellm, its default, is imported in 3 s."""

import json
import os
import urllib.request
from types import SimpleNamespace
from typing import Any

from minisweagent.models.utils.actions_toolcall import (
    BASH_TOOL,
    format_toolcall_observation_messages,
    parse_toolcall_actions,
)

NO_TOOL_CALL = "No call."


class PolicyModel:
    """Policy of the rollout, over Chat Completions of the standard library's client."""

    def __init__(self, **settings: Any) -> None:
        self.config = SimpleNamespace(**settings)

    def query(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the next message of the policy, with its calls as actions. Raises FormatError of
        mini-SWE-agent for a turn without a call."""
        sent = [{k: v for k, v in message.items() if k != "extra"} for message in messages]
        body = {"model": self.config.model_name, "messages": sent, "tools": [BASH_TOOL]}
        request = urllib.request.Request(
            os.environ["OPENAI_BASE_URL"] + "/chat/completions",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request) as response:
            message = json.load(response)["choices"][0]["message"]
        calls = [
            SimpleNamespace(id=call["id"], function=SimpleNamespace(**call["function"]))
            for call in message.get("tool_calls", ())
        ]
        actions = parse_toolcall_actions(calls, format_error_template=NO_TOOL_CALL)
        return message | {"extra": {"actions": actions, "cost": 0.0}}

    def format_message(self, **message: Any) -> dict[str, Any]:
        return message

    def format_observation_messages(
        self,
        message: dict[str, Any],
        outputs: list[dict[str, Any]],
        template_vars: dict[str, Any] | None = None,
    ) -> list[dict[str, Any]]:
        return format_toolcall_observation_messages(
            actions=message["extra"]["actions"],
            outputs=outputs,
            observation_template=self.config.observation_template,
            template_vars=template_vars,
        )

    def get_template_vars(self) -> dict[str, Any]:
        return vars(self.config)

    def serialize(self) -> dict[str, Any]:
        return {"info": {"config": {"model": vars(self.config)}}}
