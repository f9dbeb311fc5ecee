"""How a transformer that reads a text whole reads documents: each passage as a text of its own.

A document's vector is the mean of the vectors of its passages, weighted by their tokens. The base
classes, and what `read` returns, are in `models/reading.py`.

P  passages of a document      d  width of the vectors
"""

import itertools
from collections.abc import Sequence

import numpy as np

from runnel.models.reading import Documents, ReadDocument, ReadOptions, TextReader, passage_spans
from runnel.request import TokenCount
from runnel.text.kinds import text_of
from runnel.text.sentences import passage_bounds, sentence_of_tokens, split_sentences


class WholeReader(TextReader):
    """A reader with a transformer, whose first token represents the whole text: so a passage needs
    a first token of its own.
    """

    stream = None

    def read(
        self, documents: Documents, saved: Sequence[bytes | None], options: ReadOptions
    ) -> list[ReadDocument]:
        # `saved` is not used: without a state, there is nothing to continue from.
        # 1. The most tokens of a passage of several sentences, with what is written around it. A
        # longer sentence is a passage by itself, and `render` cuts it to what the model can read.
        model = self.model
        template = model.templates["document"]
        prompt = "document" if "document" in model.prompts else None
        most, longest = options.passage_tokens, model.backbone.longest_text
        if longest is not None:
            # the tokens of the prompt, the special tokens, and the one token of "a"
            around = len(next(self.embedder.render(["a"], prompt=prompt)))
            most = min(most, longest - around)
        # 2. Cut each document into passages, and make the ids of each passage.
        spans = []  # of each document, (P, 2) characters
        rows = []  # the ids of all passages of all documents
        counts = []  # of each document, (P,) tokens
        texts = list(map(text_of, documents))
        for text, encoded in zip(
            texts, template.encode_batch(model.tokenizer, "document", texts), strict=True
        ):
            sentences = split_sentences(
                text, options.language, through=TokenCount(options.progress).through
            )
            spans.append(
                passage_spans(
                    text, sentences, passage_bounds(sentence_of_tokens(sentences, encoded), most)
                )
            )
            passages = list(
                self.embedder.render((text[start:end] for start, end in spans[-1]), prompt=prompt)
            )
            rows += passages
            counts.append(np.array([len(row) for row in passages]))
        # 3. Read all passages together, and divide the vectors among the documents.
        vectors = self.embedder.encode_rows(rows, options.progress)
        read = []
        for own_spans, count in zip(spans, counts, strict=True):
            own = np.stack(list(itertools.islice(vectors, len(count))))  # (P, d)
            weighted_sum = count.astype(np.float32) @ own
            tokens = int(count.sum())
            read.append(
                ReadDocument(
                    vector=weighted_sum / np.linalg.norm(weighted_sum),
                    spans=own_spans,
                    passages=own,
                    tokens=tokens,
                    tokens_read=tokens,
                    saved=None,
                    memory=None,
                )
            )
        return read
