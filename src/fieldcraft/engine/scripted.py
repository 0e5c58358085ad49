"""Engine that returns scripted turns, for tests of the layers above engines."""

from __future__ import annotations

from collections.abc import Sequence

from fieldcraft.dialects.chat_template import find_turn_end
from fieldcraft.sampling import Completion, SamplingParams, StopReason
from fieldcraft.types import Tokenizer


class ScriptedEngine:
    """Engine that returns `turns` in order, from the start in every session; implements
    `engine.base.Engine`.

    A turn that contains a stop string ends after it, any other turn ends with an end-of-sequence
    token; `max_tokens` truncates both. Every log-probability is 0. `prompts` records the input ids
    of each call, in call order.
    """

    def __init__(self, tokenizer: Tokenizer, turns: Sequence[str]) -> None:
        self.tokenizer = tokenizer
        self.turns = list(turns)
        self.prompts: list[list[int]] = []
        self._played: dict[str, int] = {}

    async def generate(
        self, ids: Sequence[int], sampling: SamplingParams, session: str
    ) -> Completion:
        """Return the session's next turn. Raises IndexError if no turn is left."""
        self.prompts.append(list(ids))
        turn_index = self._played.get(session, 0)
        if turn_index == len(self.turns):
            raise IndexError(f"the script has {turn_index} turns; {session!r} asked for one more")
        self._played[session] = turn_index + 1
        text, reason = self.turns[turn_index], StopReason.EOS
        ends = [text.find(stop) + len(stop) for stop in sampling.stop if stop in text]
        if ends:
            text, reason = text[: min(ends)], StopReason.STOP
        token_ids = self.tokenizer.encode(text, add_special_tokens=False)
        if reason is StopReason.EOS:
            token_ids.append(find_turn_end(self.tokenizer).token_id)
        if len(token_ids) > sampling.max_tokens:
            token_ids, reason = token_ids[: sampling.max_tokens], StopReason.LENGTH
        decoded = self.tokenizer.decode(token_ids, skip_special_tokens=False)
        return Completion(token_ids, [0.0] * len(token_ids), decoded, reason)

    def release(self, session: str) -> None:
        self._played.pop(session, None)
