"""Sentence-transformers models generated during the tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast


def write_word_encoder(
    folder: Path, words: Mapping[str, Sequence[float]], prompts: Mapping[str, str] | None = None
) -> str:
    """Write a model that embeds a text as the mean of its word vectors, so that cosines can be
    computed by hand. An unknown word counts as the vector of "[UNK]"."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.normalizer = normalizers.Lowercase()
    weights = np.array(list(words.values()), dtype=np.float32)
    model = SentenceTransformer(
        modules=[StaticEmbedding(tokenizer, embedding_weights=weights)],
        prompts=dict(prompts or {}),
        device="cpu",
    )
    model.save(str(folder), create_model_card=False)
    return str(folder)


def write_bert(folder: Path, seed: int) -> str:
    """Write a bare checkpoint in the format of transformers: random weights, 16 dimensions."""
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]
    vocabulary = {token: i for i, token in enumerate([*tokens, *(f"##{t}" for t in tokens[5:])])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.normalizer = normalizers.Lowercase()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=64,
    ).save_pretrained(folder)
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(folder)
    return str(folder)
