"""Gateway of agent programs to the policy of a run: each rollout has a separate base_url.

POST /ROLLOUT/v1/chat/completions        a turn of the policy, as OpenAI's Chat Completions
POST /ROLLOUT/v1/responses               a turn of the policy, as OpenAI's Responses
POST /ROLLOUT/v1/messages                a turn of the policy, as Anthropic's Messages
POST /ROLLOUT/v1/messages/count_tokens   the number of tokens of a prompt
GET  /ROLLOUT/v1/models                  the one model, also as /ROLLOUT/v1/models/policy
POST /ROLLOUT/reward                     {"reward": number}, at any time before the rollout ends
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from pydantic import Field, FiniteFloat
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fieldcraft.extensions.external_envs import protocol
from fieldcraft.extensions.external_envs.anthropic_api import (
    count_tokens,
    create_message,
    make_error_response,
)
from fieldcraft.extensions.external_envs.chat_api import create_completion
from fieldcraft.extensions.external_envs.conversations import AgentConversation
from fieldcraft.extensions.external_envs.protocol import MODEL_NAME, parse_body, read_body
from fieldcraft.extensions.external_envs.refusals import RequestRejectedError, make_route_handler
from fieldcraft.extensions.external_envs.responses_api import create_response
from fieldcraft.tools.server_requests import RequestBody

MAX_BODY_BYTES = 16 * 2**20  # bytes; far more than the context of any model
API_ROOT = "/v1"  # end of a base_url of OpenAI's clients; those of Anthropic append it themselves
KNOWN_ROUTES = (
    "POST base_url/chat/completions or base_url/responses, where base_url ends in /v1, as OpenAI's"
    " clients do, or POST base_url/v1/messages, as Anthropic's do"
)
RequestHandler = Callable[[AgentConversation, bytes], Awaitable[Response]]


class PostedReward(RequestBody):
    """Reward that a program posts for its own rollout."""

    reward: FiniteFloat = Field(strict=False)  # a program may also post true


def create_gateway_app(conversations: Mapping[str, AgentConversation]) -> Starlette:
    """Create the routes of all rollouts that are in `conversations` at the time of a request."""

    def post(path: str, handler: RequestHandler) -> Route:
        async def handle(request: Request) -> Response:
            conversation = conversations.get(request.path_params["rollout"])
            if conversation is None:
                raise RequestRejectedError(404, "This rollout does not exist, or it is over.")
            body = await read_body(request, MAX_BODY_BYTES)
            conversation.require_open()  # the rollout may have ended while the body arrived
            return await handler(conversation, body)

        return Route(f"/{{rollout}}{path}", handle, methods=["POST"])

    reject_route = make_route_handler(KNOWN_ROUTES)
    return Starlette(
        routes=[
            post(f"{API_ROOT}/chat/completions", create_completion),
            post(f"{API_ROOT}/responses", create_response),
            # an agent function gets one base_url, which Anthropic's clients extend by /v1
            post(f"{API_ROOT}/messages", create_message),
            post(f"{API_ROOT * 2}/messages", create_message),
            post(f"{API_ROOT}/messages/count_tokens", count_tokens),
            post(f"{API_ROOT * 2}/messages/count_tokens", count_tokens),
            post("/reward", _post_reward),
            Route(f"/{{rollout}}{API_ROOT}/models", _list_models, methods=["GET"]),
            Route(f"/{{rollout}}{API_ROOT}/models/{{model:path}}", _get_model, methods=["GET"]),
        ],
        exception_handlers={
            RequestRejectedError: _handle_rejection,
            404: reject_route,
            405: reject_route,
        },
    )


async def _post_reward(conversation: AgentConversation, body: bytes) -> Response:
    conversation.reward = parse_body(PostedReward, body).reward
    return JSONResponse({"reward": conversation.reward})


async def _list_models(request: Request) -> Response:
    return JSONResponse(protocol.make_model_list(MODEL_NAME))


async def _get_model(request: Request) -> Response:
    return JSONResponse(protocol.get_model(request.path_params["model"], MODEL_NAME))


async def _handle_rejection(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestRejectedError)
    if f"{API_ROOT}/messages" in request.url.path:
        return make_error_response(error)
    return error.to_response()
