"""Passages of transformers: each is read as a text of its own."""

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.tiny import write_tokenizer
from helpers.tiny_transformers import LONGEST, write_transformer
from tokenizers import Tokenizer, processors

from runnel import Document, Embedder, Index
from runnel.backbones.encoder.model import Encoder
from runnel.errors import InputError
from runnel.models.readers import read_documents

pytestmark = pytest.mark.filterwarnings("ignore:::transformers")
TEXT = "The cat sat on the mat. A river runs to the sea, and the dog runs to the river. Dog! The mat is executed." * 5


@pytest.fixture(
    scope="module", params=[("modernbert", None, {}), ("bert", "mean", {"document": "the river "})], ids=["cls", "mean"]
)
def embedder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Embedder:
    architecture, pooling, prompts = request.param
    folder = tmp_path_factory.mktemp(architecture)
    write_transformer(folder, architecture)
    write_tokenizer(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}))
    loaded = Embedder.load(folder, "float32", "cpu", pooling=pooling)
    loaded.model.prompts = dict(prompts)
    return loaded


@pytest.mark.parametrize("passage_tokens", [1, 12, 256])
def test_passages_have_the_vectors_of_their_texts(embedder: Embedder, passage_tokens: int) -> None:
    texts = [TEXT, "Dog!", "The cat sat. The dog sat."]
    for text, read in zip(texts, read_documents(embedder, texts, passage_tokens=passage_tokens), strict=True):
        edges = read.spans.flatten().tolist()
        assert edges[0] == 0 and edges[-1] == len(text) and edges[1:-1:2] == edges[2::2]  # they tile the text
        pieces = [text[start:end] for start, end in read.spans]
        np.testing.assert_allclose(read.passages, embedder.encode_document(pieces), atol=1e-6)
        rows = list(embedder.render(pieces, prompt="document" if embedder.model.prompts else None))
        assert max(map(len, rows)) <= LONGEST and read.tokens == read.tokens_read == sum(map(len, rows))
        mean = sum(len(row) * vector for row, vector in zip(rows, read.passages, strict=True))
        np.testing.assert_allclose(read.vector, mean / np.linalg.norm(mean), atol=1e-6)
        if len(pieces) == 1:
            np.testing.assert_allclose(read.vector, embedder.encode_document(text), atol=1e-6)
    assert read_documents(embedder, []) == []


def test_a_sentence_longer_than_the_model_reads_is_an_error(embedder: Embedder) -> None:
    with pytest.raises(InputError, match=r"has 5. tokens with its special ones, and this .* reads at most 40"):
        read_documents(embedder, ["A river. " + "dog " * 50])


def test_an_index_of_such_a_model(embedder: Embedder, tmp_path: Path) -> None:
    with Index.create(tmp_path / "index", embedder) as index:
        index.add([Document("long", TEXT), Document("river", "A river runs to the sea."), Document("no", "dog " * 50)])
        found = index.search("A river runs to the sea.", dense_weight=1.0)
    # runnel's encoder reads a long sentence in parts, a library's model does not: it is left out, with a warning
    read = {"river", "long", "no"} if isinstance(embedder.model.backbone, Encoder) else {"river", "long"}
    assert found[0].id == "river" and {hit.id for hit in found} == read
