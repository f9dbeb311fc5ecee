"""How a transformer that reads a text whole reads documents: each passage as a text of its own."""

import itertools
from collections.abc import Sequence

import numpy as np

from runnel.models.reading import Documents, ReadDocument, ReadOptions, TextReader, passage_spans
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
        model = self.model
        template = model.templates["document"]
        prompt = "document" if "document" in model.prompts else None
        most, longest = options.passage_tokens, model.backbone.longest_text
        if longest is not None:
            # the tokens of the prompt, the special tokens, and the one token of "a"
            around = len(next(self.embedder.render(["a"], prompt=prompt)))
            most = min(most, longest - around)
        spans = []
        rows = []
        counts = []
        texts = list(map(text_of, documents))
        for text, encoded in zip(
            texts, template.encode_batch(model.tokenizer, "document", texts), strict=True
        ):
            sentences = split_sentences(text, options.language)
            spans.append(
                passage_spans(
                    text, sentences, passage_bounds(sentence_of_tokens(sentences, encoded), most)
                )
            )
            read = list(
                self.embedder.render((text[start:end] for start, end in spans[-1]), prompt=prompt)
            )
            rows += read
            counts.append(np.array([len(row) for row in read]))
        vectors = self.embedder.encode_rows(rows, options.progress)
        out = []
        for one, count in zip(spans, counts, strict=True):
            own = np.stack(list(itertools.islice(vectors, len(count))))
            mean = count.astype(np.float32) @ own
            tokens = int(count.sum())
            out.append(
                ReadDocument(mean / np.linalg.norm(mean), one, own, tokens, tokens, None, None)
            )
        return out
