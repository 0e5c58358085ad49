"""Treatment of the request fields of OpenAI, vLLM and Anthropic by each of our servers.

A field is supported, or has no effect on an answer, or is rejected with an error. No field is
ignored silently: its sender would train, or get answers from, another agent than intended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fieldcraft.extensions.external_envs.refusals import RequestRejectedError


class HttpApi(StrEnum):
    """Front end, with the interface that it implements."""

    GATEWAY = "gateway"  # Chat Completions over the policy of a run
    GATEWAY_RESPONSES = "gateway-responses"  # Responses over the policy of a run
    GATEWAY_MESSAGES = "gateway-messages"  # Anthropic's Messages over the policy of a run
    CHAT = "chat"  # Chat Completions over a served agent
    RESPONSES = "responses"  # Responses over a served agent


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestField:
    """Treatment of a field of a request.

    Attributes:
        used: servers that support the field.
        ignored: servers that accept any value, because no value changes the answer.
        neutral: values that every server accepts, besides null.
        advice: advice for a client that sends another value.
    """

    used: tuple[HttpApi, ...] = ()
    ignored: tuple[HttpApi, ...] = ()
    neutral: tuple[Any, ...] = ()
    advice: str = "leave it out"

    @property
    def changes_sampling(self) -> bool:
        """Return whether a field requests probabilities other than the policy's."""
        return self.advice in (OWN_PROBABILITIES, NO_CONSTRAINTS)


GATEWAY, GATEWAY_RESPONSES, GATEWAY_MESSAGES, CHAT, RESPONSES = HttpApi
OPENAI_APIS = (GATEWAY, GATEWAY_RESPONSES, CHAT, RESPONSES)  # those of OpenAI
AGENT_APIS = (CHAT, RESPONSES)
GATEWAYS = (GATEWAY, GATEWAY_RESPONSES)
ANY_RESPONSES = (GATEWAY_RESPONSES, RESPONSES)
MESSAGES = (GATEWAY_MESSAGES,)
NO_CONSTRAINTS = (
    "leave it out, because constrained decoding is not supported: ask for it in a message"
)
OWN_PROBABILITIES = (
    "leave it out, because tokens are sampled with the policy's unmodified probabilities"
)
TEXT_AS_SAMPLED = "leave it out, because an answer is the text as it was sampled"
MODEL_TEMPLATE = "leave it out, because messages are written by the model's own chat template"
NO_TOKEN_IDS = "leave it out: answers show text, and the run keeps their tokens"
NO_STATE = "send the earlier messages again, because the server is stateless"

# fmt: off
REQUEST_FIELDS: Mapping[str, RequestField] = {
    # -- both interfaces
    "model": RequestField(used=AGENT_APIS, ignored=GATEWAYS),
    "stream": RequestField(used=OPENAI_APIS),
    "stream_options": RequestField(used=(GATEWAY, CHAT), ignored=ANY_RESPONSES),
    "tools": RequestField(
        used=GATEWAYS, neutral=([],), advice="leave it out, because this agent has its own tools"
    ),
    # With 'none' the gateway offers no tools. A served agent never offers tools of the client.
    "tool_choice": RequestField(
        neutral=("auto", "none"), advice="write 'auto' or 'none', because a call cannot be forced"
    ),
    # True allows several calls in a turn. A served agent never calls tools of the client.
    "parallel_tool_calls": RequestField(
        ignored=AGENT_APIS,
        neutral=(True,),
        advice="leave it out, and run every call of a turn",
    ),
    # The run determines the exploration: with the seed of a request, all rollouts of a group would
    # be identical.
    "temperature": RequestField(used=AGENT_APIS, ignored=GATEWAYS),
    "top_p": RequestField(used=AGENT_APIS, ignored=GATEWAYS),
    "top_k": RequestField(used=AGENT_APIS, ignored=GATEWAYS),
    "min_p": RequestField(used=AGENT_APIS, ignored=GATEWAYS),
    "seed": RequestField(used=AGENT_APIS, ignored=GATEWAYS),
    "top_logprobs": RequestField(neutral=(0,), advice=NO_TOKEN_IDS),
    "user": RequestField(ignored=OPENAI_APIS),
    "metadata": RequestField(ignored=OPENAI_APIS),
    "client_metadata": RequestField(ignored=OPENAI_APIS),
    "store": RequestField(ignored=OPENAI_APIS),
    "safety_identifier": RequestField(ignored=OPENAI_APIS),
    "service_tier": RequestField(ignored=OPENAI_APIS),
    "prompt_cache_key": RequestField(ignored=OPENAI_APIS),
    "prompt_cache_options": RequestField(ignored=OPENAI_APIS),
    "prompt_cache_retention": RequestField(ignored=OPENAI_APIS),
    "moderation": RequestField(),
    # -- Chat Completions
    "messages": RequestField(used=(GATEWAY, CHAT), advice="send 'input'"),
    "max_tokens": RequestField(used=(GATEWAY, CHAT), advice="use max_output_tokens"),
    "max_completion_tokens": RequestField(used=(GATEWAY, CHAT), advice="use max_output_tokens"),
    "stop": RequestField(
        used=(GATEWAY,), neutral=([], "", [""]),
        advice="leave it out, because the agent's dialect determines the end of its turns",
    ),
    "n": RequestField(neutral=(1,), advice="send a request for each answer"),
    "logprobs": RequestField(neutral=(False,), advice=NO_TOKEN_IDS),
    "logit_bias": RequestField(neutral=({},), advice=OWN_PROBABILITIES),
    "frequency_penalty": RequestField(neutral=(0,), advice=OWN_PROBABILITIES),
    "presence_penalty": RequestField(neutral=(0,), advice=OWN_PROBABILITIES),
    "response_format": RequestField(neutral=({"type": "text"},), advice=NO_CONSTRAINTS),
    "prediction": RequestField(ignored=(GATEWAY, CHAT)),  # only makes OpenAI's service faster
    "functions": RequestField(neutral=([],), advice="send them as 'tools'"),
    "function_call": RequestField(
        neutral=("auto", "none"), advice="leave it out, because a call cannot be forced"
    ),
    "modalities": RequestField(neutral=(["text"],), advice="leave it out: answers are text"),
    "audio": RequestField(advice="leave it out: answers are text"),
    "reasoning_effort": RequestField(
        advice="set the chat template's own variable with 'chat_template_kwargs' in the recipe"
    ),
    "verbosity": RequestField(neutral=("medium",), advice="ask for it in a message"),
    "web_search_options": RequestField(advice="give the agent a tool that searches"),
    # -- Responses
    "input": RequestField(used=ANY_RESPONSES, advice="send 'messages'"),
    "instructions": RequestField(used=ANY_RESPONSES, advice="send a message of the role system"),
    "max_output_tokens": RequestField(used=ANY_RESPONSES, advice="use max_completion_tokens"),
    "max_tool_calls": RequestField(advice="set budget.max_calls of the agent's recipe"),
    "background": RequestField(neutral=(False,), advice="wait for the answer"),
    "include": RequestField(neutral=([], ["reasoning.encrypted_content"])),  # thoughts are shown
    "text": RequestField(
        neutral=({}, {"format": {"type": "text"}}, {"verbosity": "medium"},
                 {"format": {"type": "text"}, "verbosity": "medium"}),
        advice=NO_CONSTRAINTS,
    ),
    "reasoning": RequestField(
        neutral=({}, {"summary": "auto"}),  # thoughts are shown, not summarised
        advice="set the chat template's own variable with 'chat_template_kwargs' in the recipe",
    ),
    "truncation": RequestField(ignored=ANY_RESPONSES),  # a question that is too long is rejected
    "conversation": RequestField(advice=NO_STATE),
    "previous_response_id": RequestField(advice=NO_STATE),
    "prompt": RequestField(advice="send its text as 'input'"),
    "context_management": RequestField(neutral=([],), advice="send fewer messages"),
    # -- vLLM, sent by clients of open models as extra_body
    "chat_template_kwargs": RequestField(
        used=GATEWAYS,
        neutral=({},),
        advice="set 'chat_template_kwargs' in the recipe of the agent",
    ),
    "chat_template": RequestField(advice=MODEL_TEMPLATE),
    "add_generation_prompt": RequestField(neutral=(True,), advice=MODEL_TEMPLATE),
    "continue_final_message": RequestField(neutral=(False,), advice=MODEL_TEMPLATE),
    "add_special_tokens": RequestField(neutral=(False,), advice=MODEL_TEMPLATE),
    "documents": RequestField(neutral=([],), advice="write them into a message"),
    "best_of": RequestField(neutral=(1,), advice="send a request for each answer"),
    "use_beam_search": RequestField(neutral=(False,), advice=OWN_PROBABILITIES),
    "repetition_penalty": RequestField(neutral=(1,), advice=OWN_PROBABILITIES),
    "length_penalty": RequestField(neutral=(1,), advice=OWN_PROBABILITIES),
    "min_tokens": RequestField(neutral=(0,), advice=OWN_PROBABILITIES),
    "ignore_eos": RequestField(neutral=(False,), advice=OWN_PROBABILITIES),
    "stop_token_ids": RequestField(neutral=([],), advice="write the text of the tokens as 'stop'"),
    "bad_words": RequestField(neutral=([],), advice=OWN_PROBABILITIES),
    "allowed_token_ids": RequestField(advice=OWN_PROBABILITIES),
    "echo": RequestField(neutral=(False,), advice=TEXT_AS_SAMPLED),
    "include_stop_str_in_output": RequestField(neutral=(False,), advice=TEXT_AS_SAMPLED),
    "skip_special_tokens": RequestField(neutral=(True,), advice=TEXT_AS_SAMPLED),
    "spaces_between_special_tokens": RequestField(neutral=(True,), advice=TEXT_AS_SAMPLED),
    "truncate_prompt_tokens": RequestField(advice="send fewer messages"),
    "prompt_logprobs": RequestField(neutral=(False,), advice=NO_TOKEN_IDS),
    "return_token_ids": RequestField(neutral=(False,), advice=NO_TOKEN_IDS),
    "return_tokens_as_token_ids": RequestField(neutral=(False,), advice=NO_TOKEN_IDS),
    "guided_json": RequestField(advice=NO_CONSTRAINTS),
    "guided_regex": RequestField(advice=NO_CONSTRAINTS),
    "guided_choice": RequestField(advice=NO_CONSTRAINTS),
    "guided_grammar": RequestField(advice=NO_CONSTRAINTS),
    "structured_outputs": RequestField(neutral=({},), advice=NO_CONSTRAINTS),
    "priority": RequestField(ignored=OPENAI_APIS),
    "request_id": RequestField(ignored=OPENAI_APIS),
    "cache_salt": RequestField(ignored=OPENAI_APIS),
}
MESSAGES_FIELDS: Mapping[str, RequestField] = {
    "model": RequestField(ignored=MESSAGES),
    "stream": RequestField(used=MESSAGES),
    "messages": RequestField(used=MESSAGES),
    "system": RequestField(used=MESSAGES),
    "max_tokens": RequestField(used=MESSAGES),
    "stop_sequences": RequestField(used=MESSAGES),
    "tools": RequestField(used=MESSAGES),
    "tool_choice": RequestField(used=MESSAGES),
    # It decides how thoughts are shown. Their length is the policy's, and limited by the run.
    "thinking": RequestField(used=MESSAGES),
    "output_config": RequestField(used=MESSAGES),
    "chat_template_kwargs": RequestField(used=MESSAGES),
    "temperature": RequestField(ignored=MESSAGES),  # as for OpenAI's interfaces
    "top_p": RequestField(ignored=MESSAGES),
    "top_k": RequestField(ignored=MESSAGES),
    "metadata": RequestField(ignored=MESSAGES),
    "service_tier": RequestField(ignored=MESSAGES),
    "speed": RequestField(ignored=MESSAGES),
    "cache_control": RequestField(ignored=MESSAGES),
    "inference_geo": RequestField(ignored=MESSAGES),
    "diagnostics": RequestField(ignored=MESSAGES),
    "user_profile_id": RequestField(ignored=MESSAGES),
    "workspace_id": RequestField(ignored=MESSAGES),
    "billing_policy": RequestField(ignored=MESSAGES),
    "fallback_credit_token": RequestField(ignored=MESSAGES),
    "fallbacks": RequestField(ignored=MESSAGES),  # models for requests that a safety check refuses
    "betas": RequestField(ignored=MESSAGES),  # what they switch on has its own field
    "output_format": RequestField(advice=NO_CONSTRAINTS),
    "container": RequestField(advice="give the agent a tool that runs code"),
    "mcp_servers": RequestField(neutral=([],), advice="let the agent call them, and send 'tools'"),
    "thread": RequestField(advice=NO_STATE),
    "compaction": RequestField(advice="send fewer messages"),
    "context_management": RequestField(
        neutral=(
            {}, {"edits": []}, {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        ),
        advice="send fewer messages",
    ),
}
# fmt: on
UNKNOWN_FIELD = RequestField()


def reject_unsupported(fields: Mapping[str, Any], api: HttpApi) -> None:
    """Raise RequestRejectedError for the first field with a value that the server does not
    support."""
    table = MESSAGES_FIELDS if api is HttpApi.GATEWAY_MESSAGES else REQUEST_FIELDS
    for key, value in fields.items():
        field = table.get(key, UNKNOWN_FIELD)
        if api in (*field.used, *field.ignored) or is_neutral(field, value):
            continue
        message = f"This server does not support '{key}' with this value; {field.advice}."
        raise RequestRejectedError(400, message, code="unsupported_parameter", param=key)


def is_neutral(field: RequestField, value: Any) -> bool:
    """Return whether every server accepts a value. Nulls count as absent, also inside objects."""
    return value is None or _drop_nulls(value) in field.neutral


def _drop_nulls(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: _drop_nulls(item) for key, item in value.items() if item is not None}
