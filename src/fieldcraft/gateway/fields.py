"""The fields of OpenAI's requests, with those of vLLM: what each server of ours makes of every one.

A field is done as it says, or changes nothing about an answer, or is refused with a sentence. None
is passed over: whoever sends one would train, or would be answered by, another agent than meant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fieldcraft.gateway.refusals import Refused


class Server(StrEnum):
    """A front end of ours, and the interface that it speaks."""

    GATEWAY = "gateway"  # Chat Completions over the policy of a run
    CHAT = "chat"  # Chat Completions over a served agent
    RESPONSES = "responses"  # Responses over a served agent


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestField:
    """Treatment of a field of a request.

    Attributes:
        done: servers that do what it says.
        passed: servers at which it may have any value, because none changes the answer.
        neutral: values that every server accepts, besides null.
        remedy: what a client that sends another value should do.
    """

    done: tuple[Server, ...] = ()
    passed: tuple[Server, ...] = ()
    neutral: tuple[Any, ...] = ()
    remedy: str = "leave it out"

    @property
    def changes_sampling(self) -> bool:
        """Return whether a field asks for other probabilities than the policy's."""
        return self.remedy in (NO_EDITS, UNCONSTRAINED)


EVERYWHERE = tuple(Server)
GATEWAY, CHAT, RESPONSES = EVERYWHERE
SERVED = (CHAT, RESPONSES)
UNCONSTRAINED = "leave it out, because nothing constrains what is sampled: ask for it in a message"
NO_EDITS = "leave it out, because what is sampled has the policy's own probabilities"
KEEPS_TEXT = "leave it out, because an answer is the text as it was sampled"
OWN_TEMPLATE = "leave it out, because messages are written by the model's own chat template"
NO_TOKENS = "leave it out: answers show text, and the run keeps their tokens"
NO_STATE = "send the earlier messages themselves, because nothing is kept here"

# fmt: off
FIELDS: Mapping[str, RequestField] = {
    # -- of both interfaces
    "model": RequestField(done=SERVED, passed=(GATEWAY,)),
    "stream": RequestField(done=EVERYWHERE),
    "stream_options": RequestField(done=(GATEWAY, CHAT), passed=(RESPONSES,)),
    "tools": RequestField(
        done=(GATEWAY,), neutral=([],), remedy="leave it out, because this agent has its own tools"
    ),
    # The gateway offers no tools with 'none'. A served agent has none of the client's to offer.
    "tool_choice": RequestField(
        neutral=("auto", "none"), remedy="write 'auto' or 'none', because a call cannot be forced"
    ),
    # True allows several calls in a turn. A served agent has no tools of the client's to call.
    "parallel_tool_calls": RequestField(
        passed=SERVED, neutral=(True,), remedy="leave it out, and run as many calls as there are"
    ),
    # How a policy explores is the run's business: with the seed of a request all rollouts of a
    # group would be one.
    "temperature": RequestField(done=SERVED, passed=(GATEWAY,)),
    "top_p": RequestField(done=SERVED, passed=(GATEWAY,)),
    "top_k": RequestField(done=SERVED, passed=(GATEWAY,)),
    "min_p": RequestField(done=SERVED, passed=(GATEWAY,)),
    "seed": RequestField(done=SERVED, passed=(GATEWAY,)),
    "top_logprobs": RequestField(neutral=(0,), remedy=NO_TOKENS),
    "user": RequestField(passed=EVERYWHERE),
    "metadata": RequestField(passed=EVERYWHERE),
    "store": RequestField(passed=EVERYWHERE),
    "safety_identifier": RequestField(passed=EVERYWHERE),
    "service_tier": RequestField(passed=EVERYWHERE),
    "prompt_cache_key": RequestField(passed=EVERYWHERE),
    "prompt_cache_options": RequestField(passed=EVERYWHERE),
    "prompt_cache_retention": RequestField(passed=EVERYWHERE),
    "moderation": RequestField(),
    # -- of Chat Completions
    "messages": RequestField(done=(GATEWAY, CHAT), remedy="send 'input'"),
    "max_tokens": RequestField(done=(GATEWAY, CHAT), remedy="call it max_output_tokens"),
    "max_completion_tokens": RequestField(done=(GATEWAY, CHAT), remedy="call it max_output_tokens"),
    "stop": RequestField(
        done=(GATEWAY,), neutral=([], "", [""]),
        remedy="leave it out, because an agent's turns end as its dialect says",
    ),
    "n": RequestField(neutral=(1,), remedy="send a request for each answer"),
    "logprobs": RequestField(neutral=(False,), remedy=NO_TOKENS),
    "logit_bias": RequestField(neutral=({},), remedy=NO_EDITS),
    "frequency_penalty": RequestField(neutral=(0,), remedy=NO_EDITS),
    "presence_penalty": RequestField(neutral=(0,), remedy=NO_EDITS),
    "response_format": RequestField(neutral=({"type": "text"},), remedy=UNCONSTRAINED),
    "prediction": RequestField(passed=(GATEWAY, CHAT)),  # it makes OpenAI faster, and nothing else
    "functions": RequestField(neutral=([],), remedy="send them as 'tools'"),
    "function_call": RequestField(
        neutral=("auto", "none"), remedy="leave it out, because a call cannot be forced"
    ),
    "modalities": RequestField(neutral=(["text"],), remedy="leave it out: answers are text"),
    "audio": RequestField(remedy="leave it out: answers are text"),
    "reasoning_effort": RequestField(
        remedy="set what the chat template knows of it by 'template' in the recipe"
    ),
    "verbosity": RequestField(neutral=("medium",), remedy="ask for it in a message"),
    "web_search_options": RequestField(remedy="give the agent a tool that searches"),
    # -- of Responses
    "input": RequestField(done=(RESPONSES,), remedy="send 'messages'"),
    "instructions": RequestField(done=(RESPONSES,), remedy="send a message of the role system"),
    "max_output_tokens": RequestField(done=(RESPONSES,), remedy="call it max_completion_tokens"),
    "max_tool_calls": RequestField(remedy="set budget.max_calls of the agent's recipe"),
    "background": RequestField(neutral=(False,), remedy="wait for the answer"),
    "include": RequestField(neutral=([], ["reasoning.encrypted_content"])),  # thoughts are shown
    "text": RequestField(
        neutral=({}, {"format": {"type": "text"}}, {"verbosity": "medium"},
                 {"format": {"type": "text"}, "verbosity": "medium"}),
        remedy=UNCONSTRAINED,
    ),
    "reasoning": RequestField(
        neutral=({},), remedy="set what the chat template knows of it by 'template' in the recipe"
    ),
    "truncation": RequestField(passed=(RESPONSES,)),  # a question that is too long is refused
    "conversation": RequestField(remedy=NO_STATE),
    "previous_response_id": RequestField(remedy=NO_STATE),
    "prompt": RequestField(remedy="send its text as 'input'"),
    "context_management": RequestField(neutral=([],), remedy="send fewer messages"),
    # -- of vLLM, which clients of open models send as extra_body
    "chat_template_kwargs": RequestField(
        done=(GATEWAY,), neutral=({},), remedy="set 'template' in the recipe of the agent"
    ),
    "chat_template": RequestField(remedy=OWN_TEMPLATE),
    "add_generation_prompt": RequestField(neutral=(True,), remedy=OWN_TEMPLATE),
    "continue_final_message": RequestField(neutral=(False,), remedy=OWN_TEMPLATE),
    "add_special_tokens": RequestField(neutral=(False,), remedy=OWN_TEMPLATE),
    "documents": RequestField(neutral=([],), remedy="write them into a message"),
    "best_of": RequestField(neutral=(1,), remedy="send a request for each answer"),
    "use_beam_search": RequestField(neutral=(False,), remedy=NO_EDITS),
    "repetition_penalty": RequestField(neutral=(1,), remedy=NO_EDITS),
    "length_penalty": RequestField(neutral=(1,), remedy=NO_EDITS),
    "min_tokens": RequestField(neutral=(0,), remedy=NO_EDITS),
    "ignore_eos": RequestField(neutral=(False,), remedy=NO_EDITS),
    "stop_token_ids": RequestField(neutral=([],), remedy="write the text of the tokens as 'stop'"),
    "bad_words": RequestField(neutral=([],), remedy=NO_EDITS),
    "allowed_token_ids": RequestField(remedy=NO_EDITS),
    "echo": RequestField(neutral=(False,), remedy=KEEPS_TEXT),
    "include_stop_str_in_output": RequestField(neutral=(False,), remedy=KEEPS_TEXT),
    "skip_special_tokens": RequestField(neutral=(True,), remedy=KEEPS_TEXT),
    "spaces_between_special_tokens": RequestField(neutral=(True,), remedy=KEEPS_TEXT),
    "truncate_prompt_tokens": RequestField(remedy="send fewer messages"),
    "prompt_logprobs": RequestField(neutral=(False,), remedy=NO_TOKENS),
    "return_token_ids": RequestField(neutral=(False,), remedy=NO_TOKENS),
    "return_tokens_as_token_ids": RequestField(neutral=(False,), remedy=NO_TOKENS),
    "guided_json": RequestField(remedy=UNCONSTRAINED),
    "guided_regex": RequestField(remedy=UNCONSTRAINED),
    "guided_choice": RequestField(remedy=UNCONSTRAINED),
    "guided_grammar": RequestField(remedy=UNCONSTRAINED),
    "structured_outputs": RequestField(neutral=({},), remedy=UNCONSTRAINED),
    "priority": RequestField(passed=EVERYWHERE),
    "request_id": RequestField(passed=EVERYWHERE),
    "cache_salt": RequestField(passed=EVERYWHERE),
}
# fmt: on
UNKNOWN = RequestField()


def refuse_unsupported(given: Mapping[str, Any], server: Server) -> None:
    """Raise Refused for the first field that asks a server for what it does not do."""
    for key, value in given.items():
        field = FIELDS.get(key, UNKNOWN)
        if server in (*field.done, *field.passed) or is_neutral(field, value):
            continue
        told = f"This server does not support '{key}' with this value; {field.remedy}."
        raise Refused(400, told, code="unsupported_parameter", param=key)


def is_neutral(field: RequestField, value: Any) -> bool:
    """Tell whether every server accepts a value. Nulls count as absent, in objects as well."""
    return value is None or _without_nulls(value) in field.neutral


def _without_nulls(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: _without_nulls(part) for key, part in value.items() if part is not None}
