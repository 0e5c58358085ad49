"""Tiny chat model with random weights, so that the notebooks need no download."""

from collections.abc import Iterable
from pathlib import Path

from fieldcraft.train.scratch import iter_tool_texts, make_tiny_model, make_tokenizer


def write_tiny_model(
    folder: Path,
    *,
    texts: Iterable[str],
    syllables: Iterable[str],
    tools: Iterable[dict],
    width: int = 64,
    seed: int = 0,
) -> Path:
    """Write a Qwen2 model of two layers with its tokenizer, and return its folder.

    Args:
        folder: folder to write.
        texts: texts whose words become tokens.
        syllables: parts of names, which become tokens, so that the model can copy unseen names.
        tools: schemas of the tools, whose words also become tokens.
        width: number of features.
        seed: seed of the weights.
    """
    tokenizer = make_tokenizer([*texts, *iter_tool_texts(tools)], syllables)
    model = make_tiny_model(tokenizer, layers=2, width=width, heads=2, seed=seed)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
