"""Any encoder finds sentences: passages with its own markers and prompts, the words of its
vocabulary, nothing trained.
"""

import json
import re
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.tiny_transformers import write_transformer
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

from runnel import Document, Embedder, Index, SentenceRetriever
from runnel.errors import CheckpointError
from runnel.models.folder import load_model
from runnel.models.foreign.settings import published_prompts
from runnel.models.model import Model
from runnel.models.pocket.lexical import sentence_features, word_table, words
from runnel.models.pocket.scorer import VectorScorer
from runnel.models.pocket.sentence_vectors import SentenceVectors

pytestmark = pytest.mark.filterwarnings("ignore:::transformers")
SENTENCES = [
    "The cat sat on the mat. ",
    "A river runs to the sea. ",
    "The finally clause is executed. ",
    "A dog ran. ",
]
TEXT = "".join(SENTENCES * 9)  # several passages
QUERY = "the river"
GOLDEN = Path(__file__).parents[1] / "golden" / "transformers"


def write_roberta(folder: Path) -> Path:
    """With the markers <s> and </s>, and a byte-level tokenizer in which every word of the
    sentences is one piece.
    """
    folder.mkdir(parents=True)
    tokenizer = Tokenizer(models.BPE())
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    options = {
        "vocab_size": 900,
        "special_tokens": ["<s>", "<pad>", "</s>", "<unk>"],
        "show_progress": False,
    }
    texts = [*SENTENCES, QUERY, "find: rivers River cats", "cat dog sea"] * 20
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(**options, initial_alphabet=alphabet))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<s>", "eos_token": "</s>"})
    )
    write_transformer(folder, "roberta", vocab_size=tokenizer.get_vocab_size())
    shutil.copytree(GOLDEN / "bert-cls/1_Pooling", folder / "1_Pooling")
    shutil.copy(GOLDEN / "bert-cls/modules.json", folder)
    (folder / "config_sentence_transformers.json").write_text(
        json.dumps({"prompts": {"query": "find: "}})
    )
    return folder


@pytest.fixture(scope="module", params=["bert-mean", "bert-cls", "xlmr-mean", "roberta"])
def retriever(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> SentenceRetriever:
    own = request.param == "roberta"
    folder = (
        write_roberta(tmp_path_factory.mktemp("tiny") / "model") if own else GOLDEN / request.param
    )
    return SentenceRetriever.load(folder, "float32", "cpu")


def test_remembered_documents_score_as_read_ones(
    retriever: SentenceRetriever, tmp_path: Path
) -> None:
    (remembered,) = retriever.remember([TEXT])
    read = retriever.score(QUERY, TEXT)
    again = retriever.score(QUERY, remembered)
    assert [s.score for s in again] == [s.score for s in read] and "".join(
        s.text for s in read
    ) == TEXT
    stored = SentenceVectors.from_bytes(remembered.to_bytes(), TEXT)
    assert [s.score for s in retriever.score(QUERY, stored)] == [s.score for s in read]
    assert isinstance(retriever.scorer, VectorScorer)
    features = retriever.scorer.inputs(retriever.scorer.read_query(QUERY), remembered)[2]
    # "the" is a stop word
    assert [bool(bm25) for bm25 in features[:, 0] > 0] == ["river" in s.text for s in read]
    assert retriever.score(QUERY, "") == [] and len(retriever.score(QUERY, "Dog")) == 1
    # one sentence, longer than the model reads at once
    long = "The " + "cat dog river sea mat " * 30 + "sat. "
    assert len(retriever.score(QUERY, long + TEXT)) == 1 + len(SENTENCES) * 9
    (scored,) = retriever.scan(QUERY, [TEXT])
    assert not retriever.calibrated and scored.answers is None and scored.second is not None
    retriever.save(tmp_path / "saved")
    saved = SentenceRetriever.load(tmp_path / "saved", "float32", "cpu")
    found = [s.score for s in saved.score(QUERY, TEXT)]
    assert saved.model.backbone.without_torch and not saved.calibrated
    assert found == pytest.approx([s.score for s in read], abs=1e-4)


def test_sentence_vectors_are_means_of_tokens_in_passages(retriever: SentenceRetriever) -> None:
    """Each passage is between the model's markers, after the prompt, whose tokens are in no
    sentence.
    """
    model: Model = retriever.scorer.model
    (document,) = retriever.remember([TEXT])
    begin, end = model.tokenizer.markers()
    prompt = model.tokenizer.encode("passage:").ids if "document" in model.prompts else []
    room = min(160, model.backbone.max_tokens - 2) - len(prompt)
    edges = [0]
    for sentence in range(1, len(document)):
        if document.bounds[sentence + 1] - document.bounds[edges[-1]] > room:
            edges.append(sentence)
    assert len(edges) > 2
    for a, b in pairwise([*edges, len(document)]):
        row = np.array(
            [begin, *prompt, *document.ids[document.bounds[a] : document.bounds[b]], end]
        )
        hidden = model.backbone(torch.from_numpy(row))[0][1 + len(prompt) : -1]
        for sentence in range(a, b):
            own = hidden[
                document.bounds[sentence] - document.bounds[a] : document.bounds[sentence + 1]
                - document.bounds[a]
            ]
            sums = torch.from_numpy(document.sums()[sentence])
            assert torch.nn.functional.cosine_similarity(sums, own.sum(0), dim=0) > 0.999  # 8 bits
    query = retriever.scorer.read_query(QUERY)
    asked = model.tokenizer.encode(model.prompts.get("query", "") + QUERY).ids
    mean = model.backbone(torch.from_numpy(np.array([begin, *asked, end])))[0].mean(0)
    assert (
        torch.nn.functional.cosine_similarity(torch.from_numpy(query.vector), mean, dim=0) > 0.9999
    )


def test_the_embedder_is_as_before(retriever: SentenceRetriever, tmp_path: Path) -> None:
    embedder = Embedder(retriever.model)
    assert retriever.model.backbone.block is None and "sentences" not in retriever.model.heads
    tensors = zip(
        retriever.model.backbone.parameters(),
        retriever.scorer.model.backbone.parameters(),
        strict=True,
    )
    assert all(a is b for a, b in tensors)
    with Index.create(tmp_path / "index", embedder) as index:
        index.add(
            [
                Document("long", TEXT),
                Document("short", "The cat sat on the mat."),
                Document("word", "Dog"),
            ]
        )
        hits = {hit.id: hit for hit in index.search(QUERY, top_k=3)}
        assert hits.keys() == {"long", "short", "word"} and all(
            hit.sentences for hit in hits.values()
        )
        assert any("river" in sentence.text for sentence in hits["long"].sentences)
        (near, *_) = index.store.nearest(embedder.encode_document("The cat sat on the mat."), 1, [])
        assert near.document == "short" and near.score > 0.9999


def test_prompts_of_published_models(tmp_path: Path) -> None:
    for source, name, prompts in (
        ("bert-cls", "multilingual-e5-small", {"query": "query: ", "document": "passage: "}),
        ("bert-cls", "mine", {}),
        ("bert-mean", "e5-base", {"query": "the river "}),  # its own
    ):
        assert (
            load_model(shutil.copytree(GOLDEN / source, tmp_path / name), "float32", "cpu").prompts
            == prompts
        )
    assert list(published_prompts(tmp_path / "models--BAAI--bge-small-en-v1.5/snapshots/0")) == [
        "query"
    ]


def test_an_encoder_without_markers_is_refused(tmp_path: Path) -> None:
    folder = shutil.copytree(GOLDEN / "bert-cls", tmp_path / "model")
    (folder / "tokenizer_config.json").unlink()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A", pair="$A $B", special_tokens=[]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    with pytest.raises(CheckpointError, match="marker"):
        SentenceRetriever.load(folder, "float32", "cpu")


@pytest.mark.parametrize("mark", ["▁", "Ġ"])
def test_words_are_those_of_a_wordpiece_vocabulary(mark: str) -> None:
    """The same BM25 as over plain words, one piece each."""
    texts = [*SENTENCES, "River (river) mat-sat. ", "Cats! No rivers. "]
    queries = ["The river runs", "cat dog sea"]

    def features(split: Callable[[str], list[str]], query: str) -> np.ndarray:
        pieces = dict.fromkeys(
            piece for text in [*texts, *queries, "the cats"] for piece in split(text)
        )
        numbers = {piece: number for number, piece in enumerate(pieces)}
        *rows, asked = ([numbers[piece] for piece in split(text)] for text in [*texts, query])
        table = word_table(numbers, np.ones(len(numbers), np.float32))
        bounds = np.cumsum([0, *map(len, rows)])
        found = sentence_features(np.concatenate(rows), bounds, np.array(asked), table)
        return found[:, [0, 1, 4, 8, 12]]

    def marked(text: str) -> list[str]:
        return [piece.replace(" ", mark) for piece in re.findall(r" ?\w+|[^\w ]", f" {text}")]

    for query in queries:
        np.testing.assert_allclose(
            features(marked, query),
            features(lambda text: re.findall(r"\w+", text.lower()), query),
            atol=1e-6,
        )


def test_words_of_other_scripts() -> None:
    """A vowel sign continues a word, punctuation ends one, and each piece of a script without
    spaces is one.
    """
    pieces = "<s> ▁ , ▁नम स्ते ▁दुनिया ▁U . S ▁今天 天气 ▁The ▁the ▁rivers ▁river river".split()
    ids = {piece: number for number, piece in enumerate(pieces)}
    table = word_table(ids, np.ones(len(pieces), np.float32))

    def starts(*read: str) -> list[str]:
        found = words(np.array([ids[piece] for piece in read]), table)
        return [read[at] for at in found.starts]

    assert starts("<s>", "▁नम", "स्ते", ",", "▁दुनिया") == ["▁नम", "▁दुनिया"]
    assert starts("▁U", ".", "S", ".") == ["▁U", "S"]
    assert starts("▁今天", "天气", "river", "▁", "天气") == ["▁今天", "天气", "river", "天气"]
    assert len({int(table.code[ids[piece]]) for piece in ("▁rivers", "▁river", "river")}) == 1
    assert (
        table.code[ids["▁The"]] == table.code[ids["▁the"]]
        and table.stop[[ids["▁The"], ids["▁the"]]].all()
    )
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bytes_of = {piece: split.pre_tokenize_str(piece)[0][0] for piece in ("при", "вет", ",")}
    ids = {"Ġ" + bytes_of["при"]: 0, bytes_of["вет"]: 1, bytes_of[","]: 2, "Ġa": 3}
    table = word_table(ids, np.ones(4, np.float32))
    assert [words(np.array(read), table).starts.tolist() for read in ([0, 1], [0, 2, 1])] == [
        [0],
        [0, 2],
    ]
