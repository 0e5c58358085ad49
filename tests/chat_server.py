"""Model behind an OpenAI-compatible endpoint, for tests."""

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
    """Serve these responses in order; the last one repeats. Yields the server and its received
    requests."""
    got = []

    async def chat(request):
        got.append({"key": request.headers["authorization"], **await request.json()})
        return responses[min(len(got), len(responses)) - 1]

    return Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])]), got
