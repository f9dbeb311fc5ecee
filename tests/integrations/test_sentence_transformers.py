"""Models inside sentence-transformers: the same vectors and scores as outside it, before and after
training, saved and loaded.
"""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.tiny import tiny_encoder, tiny_model
from helpers.tiny_backbones import needs_int8, tiny_backbone
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer import losses

from runnel import Embedder, Reranker
from runnel.backbones.rwkv7.model import Rwkv7, Rwkv7Config
from runnel.errors import CheckpointError, InputError
from runnel.integrations.sentence_transformers import (
    RerankerModule,
    cross_encoder,
    sentence_transformer,
)
from runnel.models.folder import BUILT_IN, load_model
from runnel.models.foreign.embedding_rwkv import StateScore
from runnel.models.model import Model
from runnel.models.recurrent.graph import Long
from runnel.text.templates import Template

LOCAL = {"trust_remote_code": True, "local_files_only": True}  # how the library loads a folder
TEXT = (
    "The cat sat on the mat. A river runs to the sea; the dog sat, and the clause is executed"
    " finally. "
)
TEXTS = ["cat", TEXT * 12, "the dog sat", TEXT, "sea"]
PAIRS = [("cat", text) for text in TEXTS] + [("the river runs", text) for text in TEXTS[::-1]]


@pytest.fixture(params=[False, True], ids=["built-in heads", "papers' heads"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Model:
    made = tiny_model(tmp_path / "tiny", papers_heads=request.param)
    if request.param:  # the document may come first or last
        made.templates["rerank"] = Template.parse("{begin}{query}{end}{document}{end}")
    return made


def close(actual: Any, expected: Any, tolerance: float = 2e-6) -> None:
    np.testing.assert_allclose(
        np.asarray(actual), np.asarray(expected), atol=tolerance, rtol=tolerance
    )


def scores(model: Model | Path) -> np.ndarray:
    reranker = (
        Reranker(model) if isinstance(model, Model) else Reranker.load(model, dtype="float32")
    )
    return np.array([reranker.score(query, [document])[0] for query, document in PAIRS])


@pytest.mark.parametrize("batch_size", [1, 2, 32])
def test_vectors_and_scores_are_those_of_runnel(model: Model, batch_size: int) -> None:
    there = sentence_transformer(model)
    here = Embedder(model)
    close(there.encode(TEXTS, batch_size=batch_size), here.encode(TEXTS))
    close(there.encode_query(TEXTS, batch_size=batch_size), here.encode_query(TEXTS))
    close(there.encode_document(TEXTS, batch_size=batch_size), here.encode_document(TEXTS))
    assert there.get_embedding_dimension() == here.dimension
    assert np.abs(there.encode_query("cat") - there.encode("cat")).max() > 1e-3, (
        "the prompt makes no difference"
    )
    close(cross_encoder(model).predict(PAIRS, batch_size=batch_size), scores(model), 1e-5)


def test_runnel_goes_on_after_the_library_has_been_at_it(model: Model) -> None:
    """States and kernels that were made inside the library's inference mode can be used outside it,
    and trained through.
    """
    there = sentence_transformer(model)
    # more than the engine's pool had rows for
    many = [f"{text} {i}" for i in range(20) for text in TEXTS]
    close(there.encode(many), Embedder(model).encode(many))
    there.train()
    there(there.preprocess(TEXTS))["sentence_embedding"].sum().backward()
    there.encode(TEXTS)
    close(there.encode(TEXTS), Embedder(model).encode(TEXTS))
    features = there.preprocess(["cat", TEXT])  # the padding is cut off before reading
    assert (
        features["input_ids"].shape
        == features["attention_mask"].shape
        == (2, int(features["attention_mask"][1].sum()))
    )
    features["input_ids"][features["attention_mask"] == 0] = 77
    with torch.no_grad():
        close(there.eval()(features)["sentence_embedding"], Embedder(model).encode(["cat", TEXT]))


def test_inference_follows_the_weights_and_builds_kernels_only_for_new_ones(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the change came in training mode, or without any change of mode as `load_state_dict`
    makes it.
    """
    embedder = sentence_transformer(model)
    reranker = cross_encoder(model)
    built: list[bool] = []
    prepare = model.backbone.prepare
    monkeypatch.setattr(model.backbone, "prepare", lambda: (built.append(True), prepare())[1])
    for training in (True, False):
        before = embedder.encode(TEXTS), reranker.predict(PAIRS)
        built.clear()
        close(embedder.encode(TEXTS), before[0])
        assert not built
        embedder.train(training)
        with torch.no_grad():
            for parameter in [*model.backbone.parameters(), *model.heads.parameters()]:
                parameter += 0.05
        vectors = embedder.encode(TEXTS)
        assert len(built) == 1
        after = vectors, reranker.predict(PAIRS)
        assert (
            np.abs(after[0] - before[0]).max() > 1e-3 and np.abs(after[1] - before[1]).max() > 1e-3
        )
        model.write(tmp_path / "folder")
        fresh = load_model(tmp_path / "folder", dtype="float32")
        close(after[0], Embedder(fresh).encode(TEXTS), 1e-5)
        close(after[1], scores(fresh), 2e-5)
        close(after[0], Embedder(model).encode(TEXTS), 1e-5)


def test_only_what_the_job_needs_is_trained(tmp_path: Path) -> None:
    model = tiny_model(tmp_path)
    named = dict(sentence_transformer(model).named_parameters())
    trained = {
        name.split(".", 1)[1] for name, parameter in named.items() if parameter.requires_grad
    }
    heads = {name for name in trained if name.startswith("heads.")}
    assert heads == {
        "heads.embed.project.weight",
        "heads.embed.project.bias",
        "heads.features.log_weight",
    }
    assert {name for name in trained if name.startswith("backbone.")} == {
        f"backbone.{name}" for name, _ in model.backbone.named_parameters()
    }
    named = dict(cross_encoder(model).named_parameters())
    trained = {name for name, parameter in named.items() if parameter.requires_grad}
    assert {name for name in trained if ".features." in name} == {
        "0.heads.features.log_weight",
        "0.heads.features.mark_vectors",
    }
    assert not any(".embed." in name or ".sentences." in name for name in trained)


def test_nothing_is_cut_unless_asked_and_what_is_cut_is_told(
    model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    there = sentence_transformer(model)
    assert there.max_seq_length is None
    whole = there.preprocess(TEXTS)["attention_mask"].sum(1)
    assert int(whole[1]) > 250 and not caplog.records
    there.max_seq_length = 20
    assert there.max_seq_length == 20
    for _ in range(2):
        ids = there.preprocess(TEXTS)
        assert ids["attention_mask"].sum(1).tolist() == whole.clamp(max=20).tolist()
        assert ids["input_ids"][1, -1] == model.tokenizer.end_id, "the end marker was cut off"
    assert (
        there[0].truncated == 4
        and caplog.text.count("2 of a batch were cut to max_seq_length=20") == 1
    )
    close(there.encode(TEXTS), Embedder(model).encode(TEXTS, max_tokens=20))
    there.max_seq_length = None
    close(there.encode(TEXTS), Embedder(model).encode(TEXTS))
    for value in (0, 2.5):
        with pytest.raises(InputError, match=f"max_seq_length is {value}"):
            there.max_seq_length = value


def test_a_prompt_stands_before_the_query_and_only_documents_are_cut(
    model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    there = cross_encoder(model)
    prompted = there.predict([("cat", TEXT)], prompt="the river ")
    close(prompted, there.predict([("the river cat", TEXT)]))
    assert abs(prompted - there.predict([("cat", TEXT)])) > 1e-5
    there.max_seq_length = 40
    close(
        there.predict([("cat", TEXT * 3)]),
        Reranker(model).score("cat", [TEXT * 3], max_tokens=40),
        1e-5,
    )
    assert there[0].truncated == 1 and "1 of a batch were cut to max_seq_length=40" in caplog.text
    there.max_seq_length = 4
    with pytest.raises(InputError, match="max_tokens is 4, but the parts that are never cut"):
        there.predict([("the cat sat on the mat", TEXT)])


@pytest.mark.parametrize("make", [sentence_transformer, cross_encoder])
def test_training_gives_the_same_numbers_and_gradients_of_what_is_trained(
    model: Model, make: Any
) -> None:
    embeds = make is sentence_transformer
    there = make(model)
    key = "sentence_embedding" if embeds else "scores"
    wanted = Embedder(model).encode(TEXTS) if embeds else scores(model)[:, None]
    there.train()
    features = there.preprocess(TEXTS if embeds else PAIRS)
    before = copy.deepcopy(features)
    with torch.no_grad():
        first = there(features)[key]
    second = there(features)[key]
    assert second.requires_grad and torch.equal(first, second.detach()), (
        "not the same numbers twice"
    )
    close(second.detach(), wanted, 2e-5)
    assert features.keys() == before.keys() and len(features.get("pairs", ())) == len(
        before.get("pairs", ())
    )
    assert not embeds or all(
        torch.equal(value, features[name]) for name, value in before.items()
    ), "its input has changed"
    (second * torch.arange(1.0, len(second) + 1)[:, None]).sum().backward()
    assert all(
        (parameter.grad is not None) == parameter.requires_grad for parameter in there.parameters()
    )
    there[0].long = Long(segment_tokens=50)
    there.gradient_checkpointing_enable({"use_reentrant": False}, every_n_layers=1, offload=False)
    assert there[0].long == Long(segment_tokens=50, recompute=True)
    for options in (
        {"every_n_layers": 2},
        {"offload": True},
        {"gradient_checkpointing_kwargs": {"use_reentrant": True}},
    ):
        with pytest.raises(InputError, match="every layer is recomputed, so the options"):
            there[0].gradient_checkpointing_enable(**options)
    close(there(features)[key].detach(), wanted, 2e-5)


def test_a_folder_of_runnel_loads_in_the_library(model: Model, tmp_path: Path) -> None:
    model.save(tmp_path / "folder")
    there = SentenceTransformer(str(tmp_path / "folder"), **LOCAL)
    close(there.encode(TEXTS), Embedder(model).encode(TEXTS))
    close(there.encode_query(TEXTS), Embedder(model).encode_query(TEXTS))
    assert there.similarity_fn_name == "cosine"
    Reranker(model).save(tmp_path / "reranker")
    again = CrossEncoder(str(tmp_path / "reranker"), **LOCAL)
    close(again.predict(PAIRS), scores(model), 1e-5)
    assert not any((tmp_path / "folder").glob("*.partial"))
    there = SentenceTransformer(
        str(tmp_path / "folder"), model_kwargs={"dtype": torch.bfloat16}, **LOCAL
    )
    assert there[0].backbone.embeddings.weight.dtype == torch.bfloat16
    close(there.encode(TEXTS), Embedder.load(tmp_path / "folder", dtype="bfloat16").encode(TEXTS))


def test_what_the_library_saves_loads_in_runnel_and_in_the_library(
    model: Model, tmp_path: Path
) -> None:
    there = sentence_transformer(model)
    there.prompts = {"query": "the dog sat on: ", "document": "", "mats": "mat "}
    there.max_seq_length = 30
    there.save_pretrained(str(tmp_path / "folder"))
    again = SentenceTransformer(str(tmp_path / "folder"), **LOCAL)
    assert again.prompts == there.prompts and again.max_seq_length == 30
    close(again.encode_query(TEXTS), there.encode_query(TEXTS))
    here = Embedder.load(tmp_path / "folder", dtype="float32")
    assert here.model.prompts == {"query": "the dog sat on: ", "mats": "mat "}
    close(here.encode_query(TEXTS[:1]), there.encode_query(TEXTS[:1]))
    close(here.encode(TEXTS[:1], prompt="mats"), there.encode(TEXTS[:1], prompt_name="mats"))
    close(here.encode(TEXTS, max_tokens=30), there.encode(TEXTS))

    cross_encoder(model).save_pretrained(str(tmp_path / "reranker"))
    close(scores(tmp_path / "reranker"), scores(model), 1e-5)
    again = CrossEncoder(str(tmp_path / "reranker"), **LOCAL)
    assert isinstance(again.activation_fn, torch.nn.Identity), (
        "there is a sigmoid behind the scores"
    )
    close(again.predict(PAIRS), scores(model), 1e-5)


@needs_int8
def test_8_bit_weights_encode_but_do_not_train(tmp_path: Path) -> None:
    tiny_model(tmp_path / "tiny").save(tmp_path / "folder")
    there = sentence_transformer(load_model(tmp_path / "folder", dtype="int8", device="cpu"))
    close(there.encode(TEXTS), Embedder(there[0].model).encode(TEXTS))
    with pytest.raises(
        InputError, match='has 8-bit weights, which cannot be trained; load it with dtype="float32"'
    ):
        there.train()


@pytest.mark.parametrize("name", ["pocket-mamba2", "minilm-mamba2"])
def test_the_built_in_folder_is_up_to_date(name: str, tmp_path: Path) -> None:
    model = load_model(name, dtype="float32")
    there = SentenceTransformer(str(BUILT_IN[name]), **LOCAL)
    close(there.encode(TEXTS), Embedder(model).encode(TEXTS))
    close(cross_encoder(model).predict(PAIRS), scores(model), 1e-5)
    model.save(tmp_path / "pocket", weights="int8")
    for file in ("modules.json", "config_sentence_transformers.json"):
        assert json.loads((BUILT_IN[name] / file).read_text()) == json.loads(
            (tmp_path / "pocket" / file).read_text()
        )


def test_a_model_that_cannot_do_the_job(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "tiny")
    del model.heads["rerank"]
    for make in (cross_encoder, RerankerModule):
        with pytest.raises(CheckpointError, match="has no 'rerank' head"):
            make(model)
    with pytest.raises(CheckpointError, match="has no 'rerank' head"):
        model.save(tmp_path / "folder", job="rerank")
    assert not (tmp_path / "folder").exists()
    del model.heads["embed"]
    model.save(tmp_path / "folder")
    assert not (tmp_path / "folder/modules.json").exists(), (
        "the library has no model that finds sentences"
    )


@pytest.mark.parametrize("last", ['{"prompts": {"query": "the dog: "}}', "{"])
def test_settings_that_another_process_has_begun_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    """Processes that train together all save their model to the same folder; the library opens the
    file, which empties it.
    """
    module = sentence_transformer(tiny_model(tmp_path / "tiny"))[0]
    settings = tmp_path / "config_sentence_transformers.json"
    settings.write_text("")
    contents = iter(['{"prom', *[last] * 2000])
    monkeypatch.setattr("time.sleep", lambda seconds: settings.write_text(next(contents)))
    if last == "{":
        with pytest.raises(
            CheckpointError, match=r"config_sentence_transformers\.json cannot be read"
        ):
            module.save(str(tmp_path))
        return
    module.save(str(tmp_path))
    assert Embedder.load(tmp_path).model.prompts == {"query": "the dog: "} == module.model.prompts


REPEATED = [
    "The cat sat on the mat. " * 20,
    "A dog ran to the sea.",
    "The river runs.",
    "A dog ran to the sea.",
]
ASKED = [(query, text) for query in ("a dog", "the river") for text in REPEATED]


@pytest.fixture(params=["vectors", "states"])
def other(request, tmp_path):
    if request.param == "vectors":
        return tiny_encoder(tmp_path / "tiny")
    sizes = {"hidden_size": 32, "head_size": 16}
    backbone = tiny_backbone(Rwkv7, Rwkv7Config(vocab_size=128, num_layers=2, **sizes))
    model = tiny_model(tmp_path / "tiny", papers_heads=True, backbone=backbone)
    reader = tiny_backbone(Rwkv7, Rwkv7Config(vocab_size=1, num_layers=1, **sizes))
    model.heads["rerank"] = StateScore(backbone.state_shapes(), reader.config, (1,))
    model.heads["rerank"].reader.load_state_dict(reader.state_dict())
    model.heads.requires_grad_(False)
    return model


def test_scores_are_those_of_the_reranker_and_a_saved_folder_loads_in_the_library(other, tmp_path):
    there = cross_encoder(other)
    here = Reranker(other)
    expected = np.concatenate([here.score(query, REPEATED) for query in ("a dog", "the river")])
    assert len(set(expected.round(6).tolist())) > 4
    for batch_size in (1, 3, 32):
        np.testing.assert_allclose(there.predict(ASKED, batch_size=batch_size), expected, atol=1e-5)
        ranked = there.rank("a dog", REPEATED, batch_size=batch_size)
        assert [one["corpus_id"] for one in ranked] == [
            int(hit.id) for hit in here.rank("a dog", REPEATED)
        ]
    prompted = there.predict([("dog", REPEATED[1])], prompt="a ")
    np.testing.assert_allclose(prompted, expected[1:2], atol=1e-5)
    Reranker(other).save(tmp_path / "folder")
    again = CrossEncoder(str(tmp_path / "folder"), **LOCAL)
    np.testing.assert_allclose(again.predict(ASKED), there.predict(ASKED), atol=1e-5)
    with pytest.raises(
        InputError, match=r"scores (stored vectors|a state.*), which cannot be trained here"
    ):
        there[0].train().preprocess(ASKED)
    if other.head("rerank").inputs == "vectors":
        with pytest.raises(
            InputError, match="reads documents of any length, in passages; do not give max_tokens"
        ):
            cross_encoder(other, max_seq_length=8).predict(ASKED)


def test_a_blank_text_of_a_batch_has_a_vector_of_its_own(model, caplog):
    there = sentence_transformer(model)
    blank = np.eye(1, Embedder(model).dimension)[0]
    found = there.encode(["cat", "", TEXT, " \n"], batch_size=2)
    close(found[[0, 2]], Embedder(model).encode(["cat", TEXT]))
    close(found[[1, 3]], [blank] * 2)
    close(there.encode(""), blank)
    close(there.encode_query(["", "cat"])[0], blank)
    close(there.encode([""] * 3), [blank] * 3)
    assert "1 of 2 texts have no token" in caplog.text
    with pytest.raises(InputError, match="empty text"):
        there.train().preprocess(["cat", ""])


@pytest.mark.parametrize("change", ["half", "bfloat16"])
@pytest.mark.parametrize("name", ["pocket", "pocket-mamba2", "minilm-mamba2"])
def test_weights_of_another_precision_give_near_vectors_and_scores(name, change):
    texts = ["a mill", "rain fell on the roof"]
    pairs = [("who keeps the mill", "Ada keeps the mill."), ("who keeps the mill", "Rain fell.")]
    vectors = getattr(sentence_transformer(name), change)().encode(texts)
    expected = Embedder.load(name).encode(texts)
    assert (vectors * expected).sum(1).min() > 0.99
    scores = getattr(cross_encoder(name), change)().predict(pairs)
    exact = [Reranker.load(name).score(query, [text])[0] for query, text in pairs]
    np.testing.assert_allclose(scores, exact, atol=0.3)


@pytest.mark.parametrize("name", ["pocket", "tiny"])
def test_tokens_have_vectors_from_which_the_text_is_pooled(name, model):
    model = load_model("pocket", dtype="float32") if name == "pocket" else model
    there = sentence_transformer(model)
    embedder = Embedder(model)
    texts = ["cat", TEXT, "", "the dog sat on the mat"]
    tokens = there.encode(texts, output_value="token_embeddings", batch_size=3)
    whole = embedder.encode([text for text in texts if text])
    counts = there.preprocess(texts)["attention_mask"].sum(1).tolist()
    # the library takes one row of padding for a text without a token, if there is one
    assert [len(one) for one in tokens if one.any()] == [count for count in counts if count]
    assert not tokens[2].any() and len(tokens[2]) <= 1
    if name == "pocket":  # means of hidden vectors, of unit length
        means = np.stack([tokens[place].mean(0).numpy() for place in (0, 1, 3)])
        close(means / np.linalg.norm(means, axis=1, keepdims=True), whole, 1e-5)
    elif embedder.pooling == "eos":
        close(embedder.vectors([tokens[place][-1:] for place in (0, 1, 3)]), whole, 1e-5)
    one = there.encode("cat", output_value="token_embeddings")
    close(one, tokens[0])
    there.train()
    features = there(there.preprocess(["cat"]))
    close(features["token_embeddings"][0].detach(), tokens[0], 1e-5)
    assert "token_embeddings" not in features.keys()
    with pytest.raises(KeyError, match="other"):
        features["other"]


@pytest.mark.parametrize("kind", [SentenceTransformer, CrossEncoder])
def test_a_folder_says_by_which_class_it_loads_and_options_without_meaning_are_refused(
    kind, model, tmp_path
):
    Embedder(model).save(tmp_path / "embedder")
    Reranker(model).save(tmp_path / "reranker")
    right = tmp_path / "embedder"
    wrong = tmp_path / "reranker"
    if kind is CrossEncoder:
        right, wrong = wrong, right
    with pytest.raises(ValueError, match=r"class of sentence_transformers named.*config_sentence"):
        kind(str(wrong), **LOCAL)
    named = json.loads((right / "config_sentence_transformers.json").read_text())["model_type"]
    assert named == kind.__name__
    for bad, part in [
        ({"backend": "onnx"}, "'onnx'"),
        ({"backend": "openvino"}, "'openvino'"),
        ({"model_kwargs": {"device_map": "auto"}}, "device_map"),
        ({"processor_kwargs": {"padding_side": "left"}}, "padding_side"),
        ({"config_kwargs": {"num_labels": 1}}, "num_labels"),
    ]:
        with pytest.raises(InputError, match=part):
            kind(str(right), **LOCAL, **bad)
    there = kind(str(right), processor_kwargs={"model_max_length": 30}, **LOCAL)
    assert there.max_seq_length == 30


DOCUMENTS = ["the cat is on the mat", "a river runs to the sea", "finally " * 9]
COLUMNS = ["where is the cat", "a river", "sea"], DOCUMENTS, DOCUMENTS[1:] + DOCUMENTS[:1]


def test_autocast_to_bf16_changes_little_and_to_half_precision_is_refused(tmp_path: Path) -> None:
    there = sentence_transformer(tiny_model(tmp_path / "tiny", papers_heads=True)).train()
    loss = losses.MultipleNegativesRankingLoss(there)
    plain = loss([there.preprocess(texts) for texts in COLUMNS], None).item()
    with torch.autocast("cpu", torch.bfloat16):
        near = loss([there.preprocess(texts) for texts in COLUMNS], None).item()
    assert near == pytest.approx(plain, abs=0.05) and near != plain
    with (
        torch.autocast("cpu", torch.float16),
        pytest.raises(InputError, match="recurrent states overflow; use bf16=True"),
    ):
        there(there.preprocess(["cat"]))
