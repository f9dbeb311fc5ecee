"""How an encoder reads a document: in passages of whole sentences, each between markers.

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

    ids: np.ndarray  # int32, the ids of the text, with the markers around its blocks
    places: np.ndarray  # (T,) int64, the index of each token of the text in `ids`
    starts: np.ndarray  # int64, the first token of each sentence in `ids`
    ends: np.ndarray  # int64, the index in `ids` after each sentence's last token
    passages: np.ndarray  # int64, the first sentence of each passage, and the number of sentences
    # int64, the start of each passage in `ids`, including its marker, and the length of `ids`
    edges: np.ndarray


def whole_tokens(backbone: Blocks, prompt: int = 0) -> int:
    """Return the tokens, without markers and a prompt of `prompt` tokens, of the longest text that
    is read as a single block.
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
    """Lay out a document in blocks.

    A document that the backbone can read as one block is one passage. A longer one is cut into
    passages of up to `backbone.block` tokens. A sentence longer than the longest block is a passage
    of several blocks.

    Args:
        ids: (T,) token ids of the text; an empty text has no passage.
        bounds: the bounds of its sentences, one number more than sentences: sentence s has the
            tokens [bounds[s], bounds[s + 1]).
        markers: ids that begin and end a block (`Tokenizer.markers`).
        prompt: ids that follow the marker at the start of each block.
        begun: the text continues a document whose first passages are already laid out.
    """
    if not len(ids):
        none = np.zeros(len(bounds) - 1, dtype=np.int64)
        return Layout(ids, none[:0], none, none, np.zeros(1, np.int64), np.zeros(1, np.int64))
    longest = whole_tokens(backbone, len(prompt))
    head = np.append(markers[0], prompt).astype(np.int32)
    passages = passages_of(bounds, backbone, prompt=len(prompt), begun=begun)
    cuts = bounds[passages]
    if (np.diff(cuts) > longest).any():
        cuts = np.unique(
            np.concatenate([cuts, *(np.arange(a, b, longest) for a, b in itertools.pairwise(cuts))])
        )
    block = np.arange(len(cuts) - 1)
    around = len(head) + 1
    row = np.empty(len(ids) + around * len(block), dtype=np.int32)
    row[(cuts[:-1] + around * block)[:, None] + np.arange(len(head))] = head
    row[cuts[1:] + around * block + len(head)] = markers[1]
    places = np.arange(len(ids)) + around * np.repeat(block, np.diff(cuts)) + len(head)
    row[places] = ids
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
    `prompt`: its tokens.
    """
    longest = whole_tokens(backbone, prompt)
    if bounds[-1] <= longest and not begun:
        return np.array([0, len(bounds) - 1])
    assert backbone.block is not None
    return passage_bounds(bounds, min(backbone.block, longest))
