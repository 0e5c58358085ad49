"""The route /inference/v1/generate of any engine: token ids in, ids and log-probabilities out.

It is the route that vLLM has under this name, as the client of `renderers` asks it, which
verifiers and prime-rl train with.
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

from fieldcraft.config.complaints import first_problem
from fieldcraft.dialects.base import special_tokens
from fieldcraft.engine.base import Engine
from fieldcraft.gateway.fields import FIELDS, is_neutral
from fieldcraft.gateway.refusals import Refused
from fieldcraft.sampling import Sampling
from fieldcraft.tools.bodies import BodyTooLong, RequestBody, body_of
from fieldcraft.types import Completion, StopReason, Tokenizer

PATH = "/inference/v1/generate"
MOST_BODY = 16 * 2**20  # bytes
SESSION = "x-session-id"  # the header that names a conversation, whose cache is kept
MAX_TOKENS = 16  # of a request that names no number, as in vLLM
REASONS = {StopReason.EOS: "stop", StopReason.STOP: "stop", StopReason.LENGTH: "length"}
_numbers = itertools.count()


class SamplingParams(RequestBody):
    """Parameters of sampling. What changes probabilities in any other way than a temperature is
    refused, because the log-probabilities would not be those of the answer. Other parameters are
    about how an answer is written, and here it is ids."""

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
    def _changes_nothing_else(self) -> SamplingParams:
        for key, value in (self.model_extra or {}).items():
            field = FIELDS.get(key)
            if field is not None and field.changes_sampling and not is_neutral(field, value):
                raise ValueError(f"'{key}' is not supported with this value; {field.remedy}")
        return self


class GenerateRequest(RequestBody):
    """The body of a request."""

    token_ids: Annotated[list[NonNegativeInt], Field(min_length=1)]
    model: str = ""
    sampling_params: SamplingParams = SamplingParams()

    def stops(self, tokenizer: Tokenizer) -> tuple[str, ...]:
        """Return the strings that end the answer. A token that ends it is the text of that token;
        the end-of-sequence token always does."""
        given = self.sampling_params.stop or []
        texts = [given] if isinstance(given, str) else given
        special = special_tokens(tokenizer)
        ids = {*(self.sampling_params.stop_token_ids or ())} - {tokenizer.eos_token_id}
        return (*texts, *(special.get(i) or tokenizer.decode([i]) for i in sorted(ids)))


Ask = Callable[[GenerateRequest, str | None], Awaitable[Completion]]  # the session, if it has one


def generate_app(ask: Ask) -> Starlette:
    """Create the route over whatever answers requests."""

    async def generate(request: Request) -> JSONResponse:
        try:
            asked = GenerateRequest.model_validate_json(await body_of(request, MOST_BODY))
            done = await ask(asked, request.headers.get(SESSION))
        except ValidationError as error:
            _, clause, place = first_problem(error)
            return _refusal(f"'{'.'.join(map(str, place))}' is wrong: {clause}.")
        except (Refused, BodyTooLong) as error:
            return _refusal(str(error))
        return JSONResponse(_answer(asked, done))

    return Starlette(routes=[Route(PATH, generate, methods=["POST"])])


def from_engine(engine: Engine, tokenizer: Tokenizer) -> Ask:
    """Return a function that asks an engine for answers. A conversation without a session is
    forgotten with its answer."""

    async def ask(request: GenerateRequest, session: str | None) -> Completion:
        params = request.sampling_params
        stop = request.stops(tokenizer)
        most = params.max_tokens or MAX_TOKENS
        sampling = Sampling(most, params.temperature, stop, params.seed or next(_numbers))
        name = session or f"generate#{next(_numbers)}"
        try:
            return await engine.generate(request.token_ids, sampling, name)
        finally:
            if session is None:
                engine.release(name)

    return ask


def _answer(asked: GenerateRequest, done: Completion) -> dict[str, Any]:
    content = [
        {"token": f"token_id:{i}", "logprob": logprob}
        for i, logprob in zip(done.ids, done.logprobs, strict=True)
    ]
    choice = {
        "index": 0,
        "token_ids": done.ids,
        "logprobs": {"content": content},
        "finish_reason": REASONS[done.reason],
    }
    return {"request_id": f"generate-{next(_numbers)}", "choices": [choice], "model": asked.model}


def _refusal(message: str) -> JSONResponse:
    error = {"message": message, "type": "BadRequestError", "code": 400}
    return JSONResponse({"error": error}, status_code=400)
