import asyncio

import pytest

from checkpoints import tiny_tokenizer
from fieldcraft.engine.scripted import ScriptedEngine
from fieldcraft.sampling import Completion, SamplingParams, StopReason

TOKENIZER = tiny_tokenizer()
EOS = TOKENIZER.eos_token_id


def generate(engine: ScriptedEngine, session: str, sampling: SamplingParams) -> Completion:
    return asyncio.run(engine.generate([5, 6], sampling, session))


def test_turns_come_in_order_in_every_session() -> None:
    engine = ScriptedEngine(TOKENIZER, ["a search</q> and more", "the answer"])
    sampling = SamplingParams(50, stop=("</q>", "</r>"))
    first, second = generate(engine, "x", sampling), generate(engine, "x", sampling)
    assert first.text == "a search</q>"
    assert first.ids == TOKENIZER.encode("a search</q>")
    assert first.stop_reason is StopReason.STOP
    assert second.ids == [*TOKENIZER.encode("the answer"), EOS]
    assert second.text == "the answer<|im_end|>"
    assert second.stop_reason is StopReason.EOS
    assert second.logprobs == [0.0] * len(second.ids)
    assert generate(engine, "y", sampling) == first
    assert engine.prompts == [[5, 6]] * 3


def test_max_tokens_cut_a_turn() -> None:
    cut = generate(ScriptedEngine(TOKENIZER, ["the answer"]), "x", SamplingParams(2))
    assert cut.ids == TOKENIZER.encode("the answer")[:2]
    assert cut.stop_reason is StopReason.LENGTH


def test_released_session_starts_again_and_a_used_up_script_says_so() -> None:
    engine = ScriptedEngine(TOKENIZER, ["one"])
    generate(engine, "x", SamplingParams(9))
    with pytest.raises(IndexError, match="the script has 1 turns; 'x' asked for one more"):
        generate(engine, "x", SamplingParams(9))
    engine.release("x")
    engine.release("unknown")
    assert generate(engine, "x", SamplingParams(9)).text == "one<|im_end|>"
