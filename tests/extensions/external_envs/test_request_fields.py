"""The effect of every field of a request: it is applied, has no effect, or is rejected."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import completion_create_params
from openai.types.responses import response_create_params

from fieldcraft.extensions.external_envs.messages import TurnRequest, parse_turn_request
from fieldcraft.extensions.external_envs.refusals import RequestRejectedError
from fieldcraft.extensions.external_envs.request_fields import (
    OPENAI_APIS,
    REQUEST_FIELDS,
    HttpApi,
)
from fieldcraft.extensions.external_envs.responses_requests import ResponsesRequest
from fieldcraft.extensions.external_envs.responses_requests import (
    parse_responses_request as parse_gateway_request,
)
from fieldcraft.extensions.serving import requests
from fieldcraft.extensions.serving.requests import parse_chat_request, parse_responses_request

ASKED: Mapping[HttpApi, Any] = {
    HttpApi.GATEWAY: {"messages": [{"role": "user", "content": "Who?"}]},
    HttpApi.GATEWAY_RESPONSES: {"input": "Who?"},
    HttpApi.CHAT: {"model": "m", "messages": [{"role": "user", "content": "Who?"}]},
    HttpApi.RESPONSES: {"model": "m", "input": "Who?"},
}
READ: Mapping[HttpApi, Any] = {
    HttpApi.GATEWAY: parse_turn_request,
    HttpApi.GATEWAY_RESPONSES: parse_gateway_request,
    HttpApi.CHAT: parse_chat_request,
    HttpApi.RESPONSES: parse_responses_request,
}
MODELS: Mapping[HttpApi, Any] = {
    HttpApi.GATEWAY: TurnRequest,
    HttpApi.GATEWAY_RESPONSES: ResponsesRequest,
    HttpApi.CHAT: requests._ChatCompletionRequest,
    HttpApi.RESPONSES: requests._ResponsesRequest,
}
SERVERS = pytest.mark.parametrize("server", OPENAI_APIS)


def read(server: HttpApi, **more: Any) -> Any:
    return READ[server](json.dumps({**ASKED[server], **more}).encode())


def test_the_table_has_every_field_of_openais_client() -> None:
    chat = completion_create_params.CompletionCreateParamsBase.__annotations__
    responses = response_create_params.ResponseCreateParamsBase.__annotations__
    named_by_no_interface = {"access_programs", "background_options", "image"}
    assert {*chat, *responses} - REQUEST_FIELDS.keys() <= named_by_no_interface


@SERVERS
def test_what_the_table_calls_done_is_read(server: HttpApi) -> None:
    done = {key for key, field in REQUEST_FIELDS.items() if server in field.used}
    assert done == MODELS[server].model_fields.keys() - {"tool_choice"}


@SERVERS
@given(st.data())
def test_neutral_values_are_accepted(server: HttpApi, data: st.DataObject) -> None:
    keys = data.draw(st.lists(st.sampled_from(sorted(REQUEST_FIELDS)), unique=True))
    offered = {
        key: (None, *REQUEST_FIELDS[key].neutral) for key in keys if key not in ASKED[server]
    }
    read(server, **{key: data.draw(st.sampled_from(values)) for key, values in offered.items()})


@SERVERS
@pytest.mark.parametrize("key", [*REQUEST_FIELDS, "best_answer"])
def test_any_other_value_is_refused_with_a_remedy(server: HttpApi, key: str) -> None:
    field = REQUEST_FIELDS.get(key)
    if field is not None and server in (*field.used, *field.ignored):
        return
    with pytest.raises(
        RequestRejectedError, match=f"does not support '{key}' with this value; "
    ) as raised:
        read(server, **{key: {"of": [1]}})
    assert (raised.value.status, raised.value.error["param"]) == (400, key)
    assert str(raised.value).endswith(f"; {field.advice if field else 'leave it out'}.")


@SERVERS
@pytest.mark.parametrize(
    "more",
    [
        {"temperature": 0.7, "top_p": 0.9, "seed": 3, "user": "me", "store": True},
        {"n": 1, "frequency_penalty": 0.0, "presence_penalty": 0, "repetition_penalty": 1.0},
        {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "stop": None},
        {"response_format": {"type": "text", "json_schema": None}, "logit_bias": {}},
        {"reasoning": {"effort": None, "summary": None}, "text": {"format": {"type": "text"}}},
        {"chat_template_kwargs": {}, "ignore_eos": False, "min_tokens": 0, "priority": 1},
    ],
)
def test_what_harnesses_send_by_default_is_accepted(server: HttpApi, more: Any) -> None:
    read(server, **more)


@SERVERS
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tool_choice", "required"),
        ("tool_choice", {"type": "function", "function": {"name": "search"}}),
        ("response_format", {"type": "json_object"}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}),
        ("guided_json", {"type": "object"}),
        ("guided_regex", "a+"),
        ("structured_outputs", {"regex": "a+"}),
        ("logit_bias", {"5": -100}),
        ("n", 2),
        ("logprobs", True),
        ("top_logprobs", 5),
        ("frequency_penalty", 0.5),
        ("presence_penalty", -1),
        ("repetition_penalty", 1.1),
        ("reasoning_effort", "high"),
    ],
)
def test_what_would_change_an_answer_is_refused(server: HttpApi, key: str, value: Any) -> None:
    with pytest.raises(RequestRejectedError, match=f"does not support '{key}'"):
        read(server, **{key: value})


@SERVERS
def test_required_fields_that_are_null_are_named(server: HttpApi) -> None:
    key = "input" if "responses" in server else "messages"
    with pytest.raises(RequestRejectedError, match=f"^{key}: it is missing.$"):
        read(server, **{key: None})


def test_fields_of_messages_that_are_null_count_as_absent() -> None:
    call = {"id": None, "type": None, "function": {"name": "search", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "Who?", "name": None, "tool_calls": None},
        {"role": "assistant", "content": None, "tool_calls": [call], "function_call": None},
        {"role": "tool", "content": "Ada", "tool_call_id": None},
    ]
    request = parse_turn_request(json.dumps({"messages": messages, "stop": None}).encode())
    assert [message.text for message in request.messages] == ["Who?", "", "Ada"]
