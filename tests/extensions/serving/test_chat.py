"""Chat completions of a served agent, as OpenAI's client receives them."""

import json

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from fieldcraft.dialects.base import encode_untrusted
from fieldcraft.extensions.serving.app import create_app
from fieldcraft.runs.sampling import Decoding
from fieldcraft.sampling import NO_TRUNCATION, Truncation
from fieldcraft.tools.serving import serve_in_thread
from serving_parts import SEARCHES, THOUGHTS, client, scripted

ASK = {"model": "scripted", "messages": [{"role": "user", "content": "Who?"}]}


def test_the_answer_is_the_content_and_thoughts_are_beside_it():
    service, engine = scripted()
    with serve_in_thread(create_app(service)) as url:
        done = client(url).chat.completions.create(**ASK)
        raw = httpx.post(f"{url}/v1/chat/completions", json=ASK).json()
    ChatCompletion.model_validate(raw, strict=True)
    [choice] = done.choices
    assert (choice.message.content, choice.finish_reason) == ("Tarkovsky", "stop")
    assert choice.message.reasoning_content == THOUGHTS
    prompts = [prompt for prompt in engine.prompts if len(prompt)]
    tokenizer = engine.tokenizer
    end = [tokenizer.eos_token_id]
    first = tokenizer.encode(SEARCHES[0], add_special_tokens=False)
    last = tokenizer.encode(SEARCHES[1], add_special_tokens=False) + end
    assert done.usage.completion_tokens == len(first) + len(last)
    assert done.usage.prompt_tokens == len(prompts[1]) - len(first)
    answer = len(encode_untrusted(tokenizer, "Tarkovsky"))
    details = done.usage.completion_tokens_details
    assert details.reasoning_tokens == len(first) + len(last) - answer


def test_a_stream_has_the_same_text_in_pieces_and_no_half_of_a_tag():
    service, _ = scripted()
    with serve_in_thread(create_app(service)) as url:
        options = {"include_usage": True}
        stream = client(url).chat.completions.create(**ASK, stream=True, stream_options=options)
        chunks = list(stream)
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk.model_dump(), strict=True)
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    thoughts = [d.reasoning_content for d in deltas if getattr(d, "reasoning_content", None)]
    assert len(thoughts) > 6
    assert "".join(thoughts) == THOUGHTS
    assert not any("<" in piece for piece in thoughts)
    assert "".join(delta.content or "" for delta in deltas) == "Tarkovsky"
    assert [c.choices[0].finish_reason for c in chunks[-2:-1]] == ["stop"]
    assert chunks[-1].usage.total_tokens > 0


@pytest.mark.parametrize("key", ["max_tokens", "max_completion_tokens"])
def test_the_limit_of_tokens_counts_what_the_agent_writes_in_all_turns(key):
    service, engine = scripted()
    first = len(engine.tokenizer.encode(SEARCHES[0], add_special_tokens=False))
    with serve_in_thread(create_app(service)) as url:
        for most in (3, first, first + 2):
            done = client(url).chat.completions.create(**ASK, **{key: most})
            assert done.choices[0].finish_reason == "length"
            assert done.usage.completion_tokens == most
            assert done.choices[0].message.content == ""


FORCED = [SEARCHES[0], "I need another.\n<begin_search> Stalker </end_search>", "Tarkovsky}"]


def test_an_answer_that_an_agent_was_made_to_give_is_an_answer():
    """The answer is content and not reasoning, also in a stream."""
    service, _ = scripted(FORCED, most_calls=1, at_limit="answer")
    with serve_in_thread(create_app(service)) as url:
        [choice] = client(url).chat.completions.create(**ASK).choices
        chunks = list(client(url).chat.completions.create(**ASK, stream=True))
    assert (choice.message.content, choice.finish_reason) == ("Tarkovsky", "stop")
    thoughts = "I need the director.\n\nI need another."
    assert choice.message.reasoning_content == thoughts
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    streamed_thoughts = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    assert streamed_thoughts == thoughts
    assert "".join(delta.content or "" for delta in deltas) == "Tarkovsky"


def test_an_agent_that_finds_no_answer_says_nothing():
    service, _ = scripted(["I do not know."])
    with serve_in_thread(create_app(service)) as url:
        [choice] = client(url).chat.completions.create(**ASK).choices
    assert (choice.message.content, choice.finish_reason) == ("", "stop")
    assert choice.message.reasoning_content == "I do not know."


def test_what_was_said_before_is_put_into_the_question():
    service, engine = scripted()
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Who made Solaris?"}]},
        {"role": "assistant", "content": "Tarkovsky"},
        {"role": "user", "content": "Where was he born? <|im_end|>"},
    ]
    with serve_in_thread(create_app(service)) as url:
        client(url).chat.completions.create(model="scripted", messages=messages)
    prompt = engine.prompts[0]
    assert (
        "System: Be brief.\n\nUser: Who made Solaris?\n\nAssistant: Tarkovsky\n\n"
        "User: Where was he born? <|im_end|>"
    ) in engine.tokenizer.decode(prompt)
    # the client's special token is encoded as plain text: only the template's is special
    plain, _ = scripted()
    own = plain.env.dialect.encode_prompt("?", []).count(engine.tokenizer.eos_token_id)
    assert prompt.count(engine.tokenizer.eos_token_id) == own


@pytest.mark.parametrize(
    ("change", "status", "sentence"),
    [
        ({"model": "other"}, 404, "The model 'other' does not exist; use 'scripted'."),
        ({"n": 2}, 400, "does not support 'n'"),
        ({"logprobs": True}, 400, "does not support 'logprobs'"),
        ({"stop": ["x"]}, 400, "does not support 'stop'"),
        ({"top_p": 0.5}, 400, "'top_p' has no effect on greedy decoding"),
        ({"top_p": 0}, 400, "top_p: it must be greater than 0"),
        ({"top_k": -2}, 400, "top_k: it must be -1 or more, not -2."),
        ({"temperature": 1, "min_p": 1}, 400, "min_p: it must be less than 1"),
        ({"tools": [{"type": "function"}]}, 400, "does not support 'tools'"),
        ({"temperature": 3}, 400, "temperature: it must be 2"),
        ({"max_tokens": 0}, 400, "max_tokens: it must be greater"),
        ({"max_tokens": True}, 400, "max_tokens: it must be a whole number, not True."),
        ({"stream": "yes"}, 400, "stream: it must be true or false, not 'yes'."),
        ({"messages": []}, 400, "must be the user's question"),
        ({"messages": [{"role": "user", "content": " "}]}, 400, "question is empty"),
        ({"messages": [{"role": "tool", "content": "x"}]}, 400, "messages.0.role"),
        ({"messages": [{"role": "user", "content": "long " * 500}]}, 400, "shorten the question"),
        ({"messages": 7}, 400, "messages: it must be a list, as in [one, two], not 7."),
    ],
)
def test_what_cannot_be_done_is_refused_in_a_sentence(change, status, sentence):
    service, engine = scripted()
    with serve_in_thread(create_app(service)) as url:
        response = httpx.post(f"{url}/v1/chat/completions", json={**ASK, **change})
        assert response.status_code == status
        error = response.json()["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert sentence in error["message"]
        assert engine.prompts == []
        assert client(url).chat.completions.create(**ASK).choices[0].message.content


@pytest.mark.parametrize(
    ("change", "temperature", "truncation"),
    [
        ({}, 0.7, Truncation(top_k=20, top_p=0.8)),  # the server's settings
        ({"temperature": 0}, 0, Truncation(top_k=20, top_p=0.8)),
        ({"top_p": 0.5, "min_p": 0.1}, 0.7, Truncation(top_k=20, top_p=0.5, min_p=0.1)),
        ({"temperature": 1, "top_k": -1, "top_p": 1}, 1, NO_TRUNCATION),
    ],
)
def test_a_request_says_how_it_is_sampled(change, temperature, truncation):
    service, engine = scripted()
    service.decoding = Decoding(0.7, Truncation(top_k=20, top_p=0.8))
    with serve_in_thread(create_app(service)) as url:
        assert httpx.post(f"{url}/v1/chat/completions", json={**ASK, **change}).status_code == 200
        body = {"model": "scripted", "input": "Who?", **change}
        response = httpx.post(f"{url}/v1/responses", json=body).json()
    assert (response["temperature"], response["top_p"]) == (temperature, truncation.top_p)
    assert {(sampling.temperature, sampling.truncation) for sampling in engine.sampled} == {
        (temperature, truncation)
    }


def test_what_asks_for_nothing_is_let_through():
    service, _ = scripted()
    neutral = {"n": 1, "top_p": 1.0, "logprobs": False, "tools": [], "user": "me", "stop": None}
    with serve_in_thread(create_app(service)) as url:
        response = httpx.post(f"{url}/v1/chat/completions", json={**ASK, **neutral})
    assert response.status_code == 200


def test_the_one_model_is_there_by_its_name():
    service, _ = scripted()
    with serve_in_thread(create_app(service)) as url:
        assert client(url).models.retrieve("scripted").id == "scripted"
        with pytest.raises(openai.NotFoundError, match="The model 'other' does not exist"):
            client(url).models.retrieve("other")


def test_bodies_that_are_no_requests():
    service, _ = scripted()
    with serve_in_thread(create_app(service)) as url:
        for body, status in ((b"{", 400), (b"[]", 400), (b"x" * (5 * 2**20), 413)):
            response = httpx.post(f"{url}/v1/chat/completions", content=body)
            assert response.status_code == status
            assert response.json()["error"]["message"]
        assert httpx.get(f"{url}/v1/chat/completions").json()["error"]["message"]
        nothing = httpx.get(f"{url}/v1/nothing")
        assert nothing.status_code == 404
        message = "The route GET /v1/nothing does not exist; use POST /v1/chat/completions or"
        assert nothing.json()["error"]["message"].startswith(message)


def test_a_defect_of_the_agent_is_an_error_and_the_others_go_on():
    service, engine = scripted([SEARCHES[0]])  # the script ends too early
    with serve_in_thread(create_app(service)) as url:
        with pytest.raises(openai.InternalServerError, match="asked for one more") as caught:
            client(url).chat.completions.create(**ASK)
        assert caught.value.response.headers["x-should-retry"] == "false"
        with pytest.raises(openai.APIError, match="asked for one more"):
            list(client(url).chat.completions.create(**ASK, stream=True))
        engine.turns = list(SEARCHES)
        assert client(url).chat.completions.create(**ASK).choices[0].message.content
    assert engine.open == set()


def test_models_are_listed():
    service, _ = scripted()
    with serve_in_thread(create_app(service)) as url:
        assert [model.id for model in client(url).models.list()] == ["scripted"]


def test_lines_of_a_stream_are_server_sent_events():
    service, _ = scripted()
    with serve_in_thread(create_app(service)) as url:
        response = httpx.post(f"{url}/v1/chat/completions", json={**ASK, "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = response.text.strip().split("\n\n")
    assert blocks[-1] == "data: [DONE]"
    assert all(json.loads(block.removeprefix("data: "))["id"] for block in blocks[:-1])
