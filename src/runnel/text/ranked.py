"""The text of a document as models read and rank it: without what only looks like text
(`DocumentText.unread`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from runnel.text.documents.document import DocumentText
from runnel.text.kinds import text_of

_BREAK_TAG = re.compile(r"</?(?:br|hr|p|div|li|tr|t[dh])\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, eq=False)
class RankedText:
    """A document as it is ranked, and where its text comes from.

    Attributes:
        source: the text of the document.
        document: as it is ranked, with its blocks; a document that is a string stays one.
        pieces: (n, 3) int64: stretches that both texts have: start as it is ranked, start in
            `source`, length.
    """

    source: str
    document: str | DocumentText
    pieces: np.ndarray

    @staticmethod
    def of(document: str | DocumentText) -> RankedText:
        """Return a document as it is ranked."""
        source = text_of(document)
        unread = () if isinstance(document, str) else document.unread
        parts = []
        pieces = []
        at = 0  # in the source
        length = 0  # of the text so far
        for start, end in unread:
            # a tag that ends a line or a cell is a space
            space = " " if _BREAK_TAG.match(source, start, end) else ""
            pieces.append((length, at, start - at))
            parts += [source[at:start], space]
            length += start - at + len(space)
            at = end
        pieces.append((length, at, len(source) - at))
        if isinstance(document, str) or not parts:
            return RankedText(source, document, np.array(pieces))
        text = "".join([*parts, source[at:]])
        ranked = RankedText(source, "", np.array(pieces))
        edges = np.array([(block.start, block.end) for block in document.blocks]).reshape(-1, 2)
        blocks = tuple(
            replace(block, start=start, end=end)
            for block, (start, end) in zip(
                document.blocks, ranked._places(edges).tolist(), strict=True
            )
            if start < end
        )
        return replace(ranked, document=replace(document, text=text, blocks=blocks, unread=()))

    @property
    def text(self) -> str:
        """The text as it is ranked."""
        return text_of(self.document)

    def origin(self, spans: np.ndarray) -> np.ndarray:
        """Return where spans (S, 2) that tile the text are in the source, which they tile too. What
        is unread belongs to the span before it.
        """
        if not len(spans):
            return spans
        begins, sources, lengths = self.pieces.T
        piece = np.searchsorted(begins, spans[1:, 0], side="right") - 1
        starts = sources[piece] + np.minimum(spans[1:, 0] - begins[piece], lengths[piece])
        edges = np.concatenate([[0], starts, [len(self.source)]])
        return np.stack([edges[:-1], edges[1:]], axis=1)

    def _places(self, origins: np.ndarray) -> np.ndarray:
        """Return where places (any) of the source are in the text."""
        begins, sources, lengths = self.pieces.T
        piece = np.searchsorted(sources + lengths, origins)
        return begins[piece] + np.maximum(0, origins - sources[piece])
