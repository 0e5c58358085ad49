"""Responses of a served agent, as OpenAI's client receives them."""

import httpx
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from fieldcraft.extensions.serving.app import create_app
from fieldcraft.tools.serving import serve_in_thread
from serving_parts import SEARCHES, client, scripted

ASK = {"model": "scripted", "input": "Who?"}
TROUBLE = (
    "Hm.\n<begin_search> nothing </end_search>",
    "Hm.\n<begin_search>  </end_search>",
    *SEARCHES,
)


def test_thoughts_calls_observations_and_the_answer_are_items():
    service, _ = scripted()
    with serve_in_thread(create_app(service)) as url:
        raw = httpx.post(f"{url}/v1/responses", json=ASK).json()
        done = client(url).responses.create(**ASK)
    Response.model_validate(raw, strict=True)
    assert (done.status, done.output_text) == ("completed", "Tarkovsky")
    thought, call, second, answer = done.output
    assert [thought.content[0].text, second.content[0].text] == [
        "I need the director.",
        "It is he & nobody else.",
    ]
    assert (call.type, call.name, call.arguments) == ("mcp_call", "search", '{"query": "Solaris"}')
    assert (call.output, call.status) == ("Solaris is a film by Tarkovsky", "completed")
    assert answer.type == "message"
    assert done.usage.total_tokens == done.usage.input_tokens + done.usage.output_tokens


def test_calls_that_fail_are_items_too():
    service, _ = scripted(TROUBLE)
    with serve_in_thread(create_app(service)) as url:
        done = client(url).responses.create(**ASK)
    calls = [item for item in done.output if item.type == "mcp_call"]
    assert [(call.name, call.status) for call in calls] == [
        ("search", "failed"),
        ("unreadable_call", "failed"),
        ("search", "completed"),
    ]
    assert "found nothing" in str(calls[0].error)


def test_each_event_of_a_stream_is_one_that_the_client_knows():
    service, _ = scripted(TROUBLE)
    events = TypeAdapter(ResponseStreamEvent)
    with serve_in_thread(create_app(service)) as url:
        with client(url).responses.stream(**ASK) as stream:
            streamed = list(stream)
            final = stream.get_final_response()
        whole = client(url).responses.create(**ASK)
        raw = list(client(url).responses.create(**ASK, stream=True))
    for event in raw:
        events.validate_python(event.model_dump(), strict=True)
    assert [event.sequence_number for event in raw] == list(range(len(raw)))
    assert streamed[0].type == "response.created"
    assert final.output_text == "Tarkovsky"
    assert [item.type for item in final.output] == [item.type for item in whole.output]
    assert sum(event.type == "response.reasoning_text.delta" for event in raw) > 6
    done = [event.item for event in raw if event.type == "response.output_item.done"]
    assert [item.type for item in done] == [item.type for item in whole.output]
    assert not any("<" in e.delta for e in raw if e.type == "response.reasoning_text.delta")


def test_a_limit_of_tokens_leaves_it_incomplete():
    service, _ = scripted()
    with serve_in_thread(create_app(service)) as url:
        done = client(url).responses.create(**ASK, max_output_tokens=3)
        last = list(client(url).responses.create(**ASK, max_output_tokens=3, stream=True))[-1]
    assert (done.status, last.type) == ("incomplete", "response.incomplete")
    assert done.incomplete_details.reason == "max_output_tokens"


def test_a_response_can_be_sent_back_as_the_beginning_of_the_next():
    service, engine = scripted()
    with serve_in_thread(create_app(service)) as url:
        first = client(url).responses.create(**ASK)
        messages = [{"role": "user", "content": "Who?"}, *(i.model_dump() for i in first.output)]
        messages.append({"role": "user", "content": "Where?"})
        again = client(url).responses.create(
            model="scripted", instructions="Be brief.", input=messages
        )
    assert again.output_text == "Tarkovsky"
    prompt = engine.tokenizer.decode(engine.prompts[-2])
    assert "System: Be brief.\n\nUser: Who?\n\nAssistant: Tarkovsky\n\nUser: Where?" in prompt


def test_what_cannot_be_done_is_refused_in_a_sentence():
    service, _ = scripted()
    with serve_in_thread(create_app(service)) as url:
        for change in ({"previous_response_id": "x"}, {"tools": [{"type": "web_search"}]}):
            response = httpx.post(f"{url}/v1/responses", json={**ASK, **change})
            assert response.status_code == 400
            assert "does not support" in response.json()["error"]["message"]


def test_a_defect_and_a_passed_time_limit_are_failed_responses():
    service, engine = scripted([SEARCHES[0]])
    with serve_in_thread(create_app(service)) as url:
        broken = client(url).responses.create(**ASK)
    assert (broken.status, broken.error.code) == ("failed", "server_error")
    service, engine = scripted(timeout_seconds=0.05)
    engine.go_on.clear()
    with serve_in_thread(create_app(service)) as url:
        late = client(url).responses.create(**ASK)
    assert late.status == "failed"
    assert late.error.message == "The agent did not answer within 0.05 s."
    assert engine.open == set()
