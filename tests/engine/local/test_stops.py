import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from checkpoints import tiny_tokenizer
from fieldcraft.engine.local.requests import StopStringMatcher

TOKENIZER = tiny_tokenizer()
STOPS = StopStringMatcher(TOKENIZER, vocab_size=500)  # wider than the tokenizer, like padded models


def first_stop(ids: list[int], stop: tuple[str, ...]) -> int | None:
    """Return the number of `ids` that the engine would sample; None if no stop string completes."""
    row = STOPS.register(stop)
    completing = STOPS.can_complete[row]
    for count in range(1, len(ids) + 1):
        if completing[ids[count - 1]] and STOPS.is_complete(ids[:count], stop):
            return count
    return None


@given(
    before=st.text("abc </>\nasnwerö】答", max_size=12),
    stop=st.sampled_from(["</answer>", "】", "答 】", ">\n", " ", "n", "\n\n"]),
    after=st.text("abc>\n】", max_size=4),
)
def test_found_as_soon_as_the_decoded_text_contains_it(before: str, stop: str, after: str) -> None:
    ids = TOKENIZER.encode(before + stop + after, add_special_tokens=False)
    expected = next(n for n in range(1, len(ids) + 1) if stop in TOKENIZER.decode(ids[:n]))
    assert first_stop(ids, (stop,)) == expected


def test_a_stop_string_may_end_within_a_token() -> None:
    whole = TOKENIZER.encode(" the", add_special_tokens=False)
    assert len(whole) == 1
    assert first_stop(whole, (" t",)) == 1


def test_characters_of_several_bytes_are_found_at_their_last_byte() -> None:
    ids = TOKENIZER.encode("x】y", add_special_tokens=False)
    assert len(ids) == 5
    assert first_stop(ids, ("】",)) == 4


def test_only_tokens_that_can_complete_a_stop_string_are_looked_at() -> None:
    row = STOPS.register(("</a>", "data"))
    texts = [TOKENIZER.decode([i]) for i in range(len(TOKENIZER))]
    expected = [i for i, text in enumerate(texts) if set(text) & {">", "a", "\ufffd"}]
    assert STOPS.can_complete[row].nonzero()[0].tolist() == expected


def test_each_set_has_its_own_row_and_no_stop_strings_complete_nothing() -> None:
    assert STOPS.register(()) == 0
    assert not STOPS.can_complete[0].any()
    first, second = STOPS.register(("a",)), STOPS.register(("b",))
    assert first != second
    assert STOPS.register(("a",)) == first


def test_sets_with_the_same_last_characters_share_a_row() -> None:
    stops = StopStringMatcher(TOKENIZER, vocab_size=500)
    rows = {stops.register((f"END-{number}", "stop")) for number in range(300)}
    assert len(rows) == 10
    assert len(stops.can_complete) == 11


def test_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        STOPS.register(("a", ""))


def test_tokenizers_that_mark_words_and_fall_back_to_bytes() -> None:
    """Tokenizers like Llama 2's mark the start of a word and write unknown characters as bytes."""
    pieces = ["<unk>", "▁", "a", "▁ab", "b", *(f"<0x{byte:02X}>" for byte in range(256))]
    merges = [("▁", "ab"), ("a", "b")]
    vocabulary = {piece: i for i, piece in enumerate([*pieces, "ab"])}
    backend = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence(
        [decoders.Metaspace(), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<unk>")
    stops = StopStringMatcher(tokenizer, len(tokenizer))
    completing = {
        stop: [
            tokenizer.convert_ids_to_tokens(int(i)) for i in stops.can_complete[row].nonzero()[0]
        ]
        for stop, row in ((s, stops.register((s,))) for s in (" ", "b", "】"))
    }
    unfinished = [f"<0x{byte:02X}>" for byte in range(128, 256)]
    assert completing[" "] == ["▁", "▁ab", "<0x20>", *unfinished]
    assert completing["b"] == ["▁ab", "b", "<0x62>", *unfinished, "ab"]
    assert completing["】"] == unfinished
    ids = tokenizer.encode("ab 】 ab")
    assert [stops.is_complete(ids[:n], ("】",)) for n in range(1, len(ids) + 1)] == [
        "】" in tokenizer.decode(ids[:n]) for n in range(1, len(ids) + 1)
    ]
