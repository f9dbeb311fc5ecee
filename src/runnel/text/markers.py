"""Which ids stand before and behind a text, for every published pair of architecture and vocabulary.

Config files are not asked: several of them disagree with the tokenizer that their model was trained with. docs/tokenizers.md
has this table in words.
"""

from __future__ import annotations

from dataclasses import dataclass

from runnel.text.tokenizer import Tokenizer

# Tokens that tell a vocabulary: no two of the published ones share them.
_VOCABULARIES = {
    "RWKV World": {"<|endoftext|>": 0, "\n\n": 261, "\r\n": 263},
    "GPT-NeoX": {"<|endoftext|>": 0, "<|padding|>": 1, "!": 2},
    "Mistral v3": {"<unk>": 0, "<s>": 1, "</s>": 2, "[INST]": 3},
}


@dataclass(frozen=True, slots=True)
class Markers:
    """What to put around a text.

    Attributes:
        begin, end: ids; None: nothing.
        reason: why, in one clause.
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
    """The published vocabulary that this is, told by a few of its tokens; None: another."""
    for name, tokens in _VOCABULARIES.items():
        if all(tokenizer.vocabulary.get(token) == number for token, number in tokens.items()):
            return name
    return None


def markers(architecture: str, tokenizer: Tokenizer) -> Markers:
    """The markers of a checkpoint that says nothing about them that can be trusted.

    Args:
        architecture: as in `Backbone.architecture`.
        tokenizer: the folder's own; where the pair is not a published one, its markers are taken. Mamba was not trained with
            a begin marker, so it gets none then.
    """
    name = vocabulary_name(tokenizer)
    if found := _PUBLISHED.get((architecture, name or "")):
        return found
    begin = None if architecture in ("mamba1", "mamba2") else tokenizer.begin_id
    return Markers(begin, tokenizer.end_id, "as the tokenizer's own files say")
