"""A model behind an OpenAI-compatible endpoint, as the tests need it."""

from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


def completion(text="hi", finish="stop", tokens=(10, 2), **message):
    return JSONResponse(
        {
            "id": "1",
            "object": "chat.completion",
            "model": "m",
            "choices": [
                {
                    "index": 0,
                    "finish_reason": finish,
                    "message": {"role": "assistant", "content": text} | message,
                }
            ],
            "usage": {"prompt_tokens": tokens[0], "completion_tokens": tokens[1]},
        }
    )


def answering(*responses: Response):
    """A server that gives these responses in turn, the last one for ever; and what it got."""
    got = []

    async def chat(request):
        got.append({"key": request.headers["authorization"], **await request.json()})
        return responses[min(len(got), len(responses)) - 1]

    return Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])]), got
