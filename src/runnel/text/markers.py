"""The ids before and after a text, for every published pair of architecture and vocabulary.

Config files are ignored: several disagree with the tokenizer that their model was trained with. docs/tokenizers.md explains
this table.
"""

from __future__ import annotations

from dataclasses import dataclass

from runnel.text.tokenizer import Tokenizer

# Tokens that identify a vocabulary: no two published vocabularies share them.
_VOCABULARIES = {
    "RWKV World": {"<|endoftext|>": 0, "\n\n": 261, "\r\n": 263},
    "GPT-NeoX": {"<|endoftext|>": 0, "<|padding|>": 1, "!": 2},
    "Mistral v3": {"<unk>": 0, "<s>": 1, "</s>": 2, "[INST]": 3},
}


@dataclass(frozen=True, slots=True)
class Markers:
    """The ids to put around a text.

    Attributes:
        begin, end: ids, or None.
        reason: why these ids, in one clause.
    """

    begin: int | None
    end: int | None
    reason: str


_PUBLISHED = {
    ("mamba1", "GPT-NeoX"): Markers(None, 0, "trained on documents with 0 between them, without a begin marker"),
    ("mamba2", "GPT-NeoX"): Markers(None, 0, "trained on documents with 0 between them, without a begin marker"),
    ("mamba2", "Mistral v3"): Markers(1, 2, "the tokenizer's own <s> and </s>; the ids in the configs contradict it"),
    ("rwkv7", "RWKV World"): Markers(0, 0, "0 stands between documents, and the authors put it before each text"),
    ("rwkv7", "GPT-NeoX"): Markers(0, 0, "0 stands between documents, and the authors put it before each text"),
    ("xlstm", "GPT-NeoX"): Markers(0, 0, "the config forces a begin marker; its end marker, 2, is '!' in this vocabulary"),
}


def vocabulary_name(tokenizer: Tokenizer) -> str | None:
    """Return the name of a published vocabulary, recognized by a few of its tokens; None for any other."""
    for name, tokens in _VOCABULARIES.items():
        if all(tokenizer.vocabulary.get(token) == number for token, number in tokens.items()):
            return name
    return None


def markers(architecture: str, tokenizer: Tokenizer) -> Markers:
    """Return the markers of a checkpoint whose config does not state them reliably.

    Args:
        architecture: as in `Backbone.architecture`.
        tokenizer: the folder's own. If the pair is not a published one, its markers are used, but no begin marker for Mamba,
            which was not trained with one.
    """
    name = vocabulary_name(tokenizer)
    if published := _PUBLISHED.get((architecture, name or "")):
        return published
    begin = None if architecture in ("mamba1", "mamba2") else tokenizer.begin_id
    return Markers(begin, tokenizer.end_id, "as the tokenizer's own files say")
