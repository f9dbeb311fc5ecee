"""How an encoder reads a document: which tokens it reads together.

Passage    whole sentences that the encoder reads together. A text that fits into one block is one
           passage; a longer one is cut into passages of up to `backbone.passage_tokens` tokens, or
           more for a single sentence.
Block      what is read at once: a begin marker, the prompt, up to `longest_block` tokens of the
           text, and an end marker. A passage is one block, except for a single sentence longer than
           a block, which is a passage of several.
Row        the blocks of a text, laid end to end.

    text       a b c d | e f g                           two passages, each one block
    row        [CLS] a b c d [SEP] [CLS] e f g [SEP]     with BERT's markers and no prompt

`passages_of` divides the sentences into passages, and `lay_out` makes the row.

T  tokens of a text
"""

import itertools
from dataclasses import dataclass

import numpy as np

from runnel.backbones.config import Blocks
from runnel.backbones.encoder.config import MARKER_COUNT
from runnel.errors import InputError
from runnel.text.sentences import passage_bounds

NO_PROMPT = np.zeros(0, dtype=np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """A document as an encoder reads it. Markers are inside a sentence only if it is longer than
    the longest block.
    """

    ids: np.ndarray  # int32, the row: the ids of the text, with markers and prompt of its blocks
    places: np.ndarray  # (T,) int64, the index of each token of the text in `ids`
    starts: np.ndarray  # int64, the first token of each sentence in `ids`
    ends: np.ndarray  # int64, the index in `ids` after each sentence's last token
    passages: np.ndarray  # int64, the first sentence of each passage, and the number of sentences
    # int64, the start of each passage in `ids`, including its marker, and the length of `ids`
    edges: np.ndarray


def longest_block(backbone: Blocks, prompt: int = 0) -> int:
    """Return the most tokens of a text in one block: without the markers and the `prompt` tokens of
    a prompt.
    """
    assert backbone.max_tokens is not None
    longest = backbone.max_tokens - MARKER_COUNT - prompt
    if longest < 1:
        raise InputError(
            f"the prompt has {prompt} tokens, and {backbone.title} reads {backbone.max_tokens} at"
            " once; shorten it"
        )
    return longest


def lay_out(
    ids: np.ndarray,
    bounds: np.ndarray,
    backbone: Blocks,
    markers: tuple[int, int],
    *,
    prompt: np.ndarray = NO_PROMPT,
    begun: bool = False,
) -> Layout:
    """Lay out a document in passages and blocks.

    Args:
        ids: (T,) token ids of the text; an empty text has no passage.
        bounds: the bounds of its sentences, one number more than sentences: sentence s has the
            tokens [bounds[s], bounds[s + 1]).
        markers: ids that begin and end a block (`Tokenizer.markers`).
        prompt: ids that follow the marker at the start of each block.
        begun: the text continues a document whose first passages are already laid out
            (`PassageStream`), so it is cut into passages even if it fits into one block.
    """
    if not len(ids):
        none = np.zeros(len(bounds) - 1, dtype=np.int64)
        return Layout(ids, none[:0], none, none, np.zeros(1, np.int64), np.zeros(1, np.int64))
    # 1. The blocks: block i has the tokens [cuts[i], cuts[i + 1]) of the text. A passage that is
    # too long for one block is cut every `longest` tokens.
    longest = longest_block(backbone, len(prompt))
    passages = passages_of(bounds, backbone, prompt=len(prompt), begun=begun)
    cuts = bounds[passages]
    if (np.diff(cuts) > longest).any():
        cuts = np.unique(
            np.concatenate([cuts, *(np.arange(a, b, longest) for a, b in itertools.pairwise(cuts))])
        )
    # 2. The row. Each block puts `around` ids beside its tokens: the `head` before them (begin
    # marker and prompt) and the end marker after them. So block i begins in the row at
    # cuts[i] + around * i, and a token moves by `around` for each block before its own.
    head = np.append(markers[0], prompt).astype(np.int32)
    around = len(head) + 1
    block = np.arange(len(cuts) - 1)
    row = np.empty(len(ids) + around * len(block), dtype=np.int32)
    row[(cuts[:-1] + around * block)[:, None] + np.arange(len(head))] = head
    row[cuts[1:] + around * block + len(head)] = markers[1]
    places = np.arange(len(ids)) + around * np.repeat(block, np.diff(cuts)) + len(head)
    row[places] = ids
    # 3. Where sentences are in the row. One without a token ends where it starts; at the end of the
    # text it starts after the last token (`append`), at the start it has no token before it
    # (`maximum`).
    starts = np.append(places, places[-1] + 1)[bounds[:-1]]
    ends = np.where(np.diff(bounds) > 0, places[np.maximum(bounds[1:] - 1, 0)] + 1, starts)
    return Layout(
        row,
        places,
        starts,
        ends,
        passages,
        np.append(places[bounds[passages[:-1]]] - len(head), len(row)),
    )


def passages_of(
    bounds: np.ndarray, backbone: Blocks, *, prompt: int = 0, begun: bool = False
) -> np.ndarray:
    """Return the first sentence of each passage of `lay_out`, and the number of sentences.
    `prompt`: the number of its tokens.
    """
    longest = longest_block(backbone, prompt)
    if bounds[-1] <= longest and not begun:
        return np.array([0, len(bounds) - 1])
    assert backbone.passage_tokens is not None
    return passage_bounds(bounds, min(backbone.passage_tokens, longest))
