"""Texts of tokens that arrive one by one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from tokenizers.decoders import DecodeStream

from fieldcraft.dialects.incremental_decoding import IncrementalDecoder
from small_models import bytes_tokenizer, pieces_tokenizer

BYTES = {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}


def make_llama_tokenizer() -> Tokenizer:
    """Return a tokenizer like Llama 2's, whose decoder drops the first space."""
    words = ["<unk>", "<s>", "</s>", *BYTES, "▁the", "▁a", "b", "▁"]
    vocabulary = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>"))
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)])
    return tokenizer


TOKENIZERS = {
    "bytes": bytes_tokenizer(),
    "pieces": pieces_tokenizer(),
    "Llama 2": make_llama_tokenizer(),
}


def decode_one_by_one(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    decoder = IncrementalDecoder(tokenizer)
    return [decoder.step(i) for i in ids]


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=st.text("ab the\n😀】é", max_size=20))
def test_the_pieces_are_the_text(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert "".join(decode_one_by_one(tokenizer, ids)) == tokenizer.decode(ids)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
def test_any_tokens_have_a_text(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]
    ids = st.integers(0, tokenizer.get_vocab_size() + 5)  # wider than the tokenizer
    decode_one_by_one(tokenizer, data.draw(st.lists(ids, max_size=30)))


def test_a_character_that_is_cut_becomes_a_replacement() -> None:
    tokenizer = TOKENIZERS["Llama 2"]
    words = ["▁a", "<0x0A>", "<0xF0>", "<0x9F>", "▁the", "<0xC3>", "<0xA9>", "b"]
    ids = [tokenizer.token_to_id(word) for word in words]
    stream = DecodeStream(skip_special_tokens=False)
    with pytest.raises(Exception, match="Invalid prefix"):  # the reason for a decoder of our own
        [stream.step(tokenizer, i) for i in ids]
    pieces = ["a", "\n", "", "", "\ufffd\ufffd the", "", "é", "b"]
    assert decode_one_by_one(tokenizer, ids) == pieces


def test_bytes_that_are_no_characters_do_not_accumulate() -> None:
    ids = [BYTES["<0x80>"]] * 12
    pieces = decode_one_by_one(TOKENIZERS["Llama 2"], ids)
    assert [len(piece) for piece in pieces] == [0, 0, 0, 4] * 3
