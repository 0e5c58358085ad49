"""Route /inference/v1/generate over any engine: token ids in, ids and log-probabilities out.

It is compatible with vLLM's route of this name, as used by the client of `renderers`, with which
verifiers and prime-rl train.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from pydantic import (
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
    model_validator,
)
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from fieldcraft.config.validation_errors import describe_validation_error
from fieldcraft.dialects.base import get_special_tokens
from fieldcraft.extensions.external_envs.refusals import RequestRejectedError
from fieldcraft.extensions.external_envs.request_fields import REQUEST_FIELDS, is_neutral
from fieldcraft.sampling import Completion, StopReason
from fieldcraft.tools.server_requests import BodyTooLongError, RequestBody, read_body_bytes
from fieldcraft.types import Tokenizer

GENERATE_PATH = "/inference/v1/generate"
MAX_BODY_BYTES = 16 * 2**20  # bytes
FINISH_REASONS = {StopReason.EOS: "stop", StopReason.STOP: "stop", StopReason.LENGTH: "length"}
_request_ids = itertools.count()


class GenerateSamplingParams(RequestBody):
    """Sampling parameters of a request.

    Parameters other than the temperature that change probabilities are rejected, because the
    returned log-probabilities would not match the sampled tokens. The remaining parameters concern
    the text of an answer, and here it is ids.
    """

    model_config = ConfigDict(extra="allow")

    max_tokens: PositiveInt | None = None
    temperature: NonNegativeFloat = 1.0
    seed: int | None = None
    stop: list[str] | str | None = None
    stop_token_ids: list[NonNegativeInt] | None = None
    n: Annotated[int, Field(ge=1, le=1)] = 1
    top_p: Annotated[float, Field(ge=1, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1, le=0)] = 0
    min_p: Annotated[float, Field(ge=0, le=0)] = 0.0

    @model_validator(mode="after")
    def _reject_probability_changes(self) -> GenerateSamplingParams:
        for key, value in (self.model_extra or {}).items():
            field = REQUEST_FIELDS.get(key)
            if field is not None and field.changes_sampling and not is_neutral(field, value):
                raise ValueError(f"'{key}' is not supported with this value; {field.advice}")
        return self


class GenerateRequest(RequestBody):
    """Body of a request."""

    token_ids: Annotated[list[NonNegativeInt], Field(min_length=1)]
    model: str = ""
    sampling_params: GenerateSamplingParams = GenerateSamplingParams()

    def stop_strings(self, tokenizer: Tokenizer) -> tuple[str, ...]:
        """Return the strings that end the answer. Stop tokens are given by their text; the
        end-of-sequence token always ends it."""
        stop = self.sampling_params.stop or []
        texts = [stop] if isinstance(stop, str) else stop
        special = get_special_tokens(tokenizer)
        ids = {*(self.sampling_params.stop_token_ids or ())} - {tokenizer.eos_token_id}
        return (*texts, *(special.get(i) or tokenizer.decode([i]) for i in sorted(ids)))


GenerateHandler = Callable[[GenerateRequest], Awaitable[Completion]]


def create_generate_app(handler: GenerateHandler) -> Starlette:
    """Create the route over a handler of requests."""

    async def generate(request: Request) -> JSONResponse:
        try:
            generate_request = GenerateRequest.model_validate_json(
                await read_body_bytes(request, MAX_BODY_BYTES)
            )
            completion = await handler(generate_request)
        except ValidationError as error:
            _, clause, location = describe_validation_error(error)
            return _make_error_response(f"'{'.'.join(map(str, location))}' is wrong: {clause}.")
        except (RequestRejectedError, BodyTooLongError) as error:
            return _make_error_response(str(error))
        return JSONResponse(_render_response(generate_request, completion))

    return Starlette(routes=[Route(GENERATE_PATH, generate, methods=["POST"])])


def _render_response(request: GenerateRequest, completion: Completion) -> dict[str, Any]:
    content = [
        {"token": f"token_id:{i}", "logprob": logprob}
        for i, logprob in zip(completion.ids, completion.logprobs, strict=True)
    ]
    choice = {
        "index": 0,
        "token_ids": completion.ids,
        "logprobs": {"content": content},
        "finish_reason": FINISH_REASONS[completion.stop_reason],
    }
    return {
        "request_id": f"generate-{next(_request_ids)}",
        "choices": [choice],
        "model": request.model,
    }


def _make_error_response(message: str) -> JSONResponse:
    error = {"message": message, "type": "BadRequestError", "code": 400}
    return JSONResponse({"error": error}, status_code=400)
