"""The published vocabularies, recognized by some of their tokens: config files name others than those of the training."""

from __future__ import annotations

from runnel.text.tokenizer import Tokenizer

# Tokens that identify a vocabulary: no two published vocabularies share them.
_VOCABULARIES = {
    "RWKV World": {"<|endoftext|>": 0, "\n\n": 261, "\r\n": 263},
    "GPT-NeoX": {"<|endoftext|>": 0, "<|padding|>": 1, "!": 2},
    "Mistral v3": {"<unk>": 0, "<s>": 1, "</s>": 2, "[INST]": 3},
}


def vocabulary_name(tokenizer: Tokenizer) -> str | None:
    """Return the name of a published vocabulary, recognized by a few of its tokens; None for any other."""
    for name, tokens in _VOCABULARIES.items():
        if all(tokenizer.vocabulary.get(token) == number for token, number in tokens.items()):
            return name
    return None
