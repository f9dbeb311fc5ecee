"""Folders of sentence-transformers: the vectors that it gives, or an error by name; end markers are
added as the files say.
"""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.tiny import write_tokenizer
from helpers.tiny_transformers import change_config, write_transformer
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, processors

from runnel import Embedder
from runnel.errors import CheckpointError

pytestmark = [
    pytest.mark.filterwarnings("ignore:::transformers"),
    pytest.mark.filterwarnings("ignore:::sentence_transformers"),
]

GOLDEN = Path(__file__).parent.parent / "golden"
TEXTS = [
    "the cat sat on the mat",
    "dog",
    "a river runs to the sea and the dog is executed finally",
    "clause 12, river!",
]
# Where its classes have been: up to version 4, and from 5 on.
OLD = {
    name: f"sentence_transformers.models.{name}"
    for name in ("Transformer", "Pooling", "Normalize", "Dense")
}
OLD_MODES = {
    "lasttoken": "pooling_mode_lasttoken",
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
}
NEW = {
    "Transformer": "sentence_transformers.base.modules.transformer.Transformer",
    "Pooling": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    "Normalize": "sentence_transformers.base.modules.normalize.Normalize",
}


def write(
    folder: Path,
    architecture: str = "llama",
    *,
    types: dict[str, str] = OLD,
    mode: str = "lasttoken",
) -> Path:
    if architecture == "mamba2":
        shutil.copytree(GOLDEN / "mamba2-tiny-hf", folder)
    else:
        write_transformer(folder, architecture)
    write_tokenizer(folder)
    frame(folder)
    write_modules(folder, [types["Transformer"], types["Pooling"], types["Normalize"]])
    (folder / "1_Pooling").mkdir()
    config = {OLD_MODES[mode]: True} if types is OLD else {"pooling_mode": mode}
    (folder / "1_Pooling/config.json").write_text(
        json.dumps({"word_embedding_dimension": 32} | config)
    )
    return folder


def write_modules(folder: Path, types: list[str]) -> None:
    paths = ["", "1_Pooling", "2_Normalize", "3_Dense"]
    listed = [
        {"idx": n, "name": str(n), "path": paths[n], "type": kind} for n, kind in enumerate(types)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))


def frame(folder: Path, *, end: bool = False, **config: Any) -> None:
    """Have tokenizer.json add the end marker, or say something in tokenizer_config.json; [SEP] is
    id 3.
    """
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    if end:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="$A [SEP]", pair="$A [SEP] $B [SEP]", special_tokens=[("[SEP]", 3)]
        )
        tokenizer.save(str(folder / "tokenizer.json"))
    names = {
        "eos_token": "[SEP]",
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(names | config))


def theirs(
    folder: Path, texts: list[str] = TEXTS, *, add_end: bool = False, **options: Any
) -> np.ndarray:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    # as transformers 4 does; from 5 on it forgets the setting where there is a tokenizer.json
    if add_end:
        model.tokenizer.add_eos_token = True
    return model.encode(texts, normalize_embeddings=True, **options)


def told(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == "runnel"]


def test_the_tokenizer_adds_the_end_marker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    frame(write(tmp_path / "a", "mistral"), end=True)
    ours = Embedder.load(tmp_path / "a", "float32", "cpu")
    assert str(ours.model.templates["document"]) == "{document}{token:[SEP]}" and not told(caplog)
    np.testing.assert_allclose(ours.encode(TEXTS), theirs(tmp_path / "a"), atol=1e-5)


def test_tokenizer_config_asks_for_the_end_marker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Some of the library's tokenizers honor the setting."""
    frame(write(tmp_path / "a"), add_eos_token=True, tokenizer_class="LlamaTokenizerFast")
    ours = Embedder.load(tmp_path / "a", "float32", "cpu")
    assert str(ours.model.templates["document"]) == "{document}{token:[SEP]}" and not told(caplog)
    frame(tmp_path / "a")  # the same ids by the library's plain class
    np.testing.assert_allclose(ours.encode(TEXTS), theirs(tmp_path / "a", add_end=True), atol=1e-5)


def test_a_folder_as_those_of_gte_qwen2(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Read both ways, with an end marker that the tokenizer's own class adds, and a prompt for
    queries.

    Its code only copies what the library does for is_causal.
    """
    folder = write(tmp_path / "a")
    change_config(folder, auto_map={"AutoModel": "modeling_qwen.Qwen2Model"}, is_causal=False)
    (folder / "config_sentence_transformers.json").write_text(
        json.dumps({"prompts": {"query": "the river "}})
    )
    own = {
        "tokenizer_class": "Qwen2Tokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_qwen.Qwen2Tokenizer", None]},
    }
    frame(folder, add_eos_token=True, **own)
    ours = Embedder.load(folder, "float32", "cpu")
    assert not told(caplog)
    frame(folder)
    np.testing.assert_allclose(ours.encode(TEXTS), theirs(folder, add_end=True), atol=1e-5)
    np.testing.assert_allclose(
        ours.encode_query(TEXTS), theirs(folder, add_end=True, prompt_name="query"), atol=1e-5
    )
    assert Embedder.load(folder, pooling="cls").dimension == 32  # which a causal model has not


@pytest.mark.parametrize("setting", [{}, {"add_eos_token": False}, {"add_eos_token": True}])
def test_nothing_adds_one(
    tmp_path: Path, setting: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The library's plain class knows no add_eos_token. The last word is pooled then, as
    sentence-transformers does.
    """
    frame(write(tmp_path / "a"), **setting)
    with caplog.at_level(logging.WARNING, "runnel"):
        ours = Embedder.load(tmp_path / "a", "float32", "cpu")
    (record,) = told(caplog)
    assert record.getMessage().startswith(
        f"{tmp_path / 'a'} pools the last token and its tokenizer adds no end marker"
    )
    np.testing.assert_allclose(ours.encode(TEXTS), theirs(tmp_path / "a"), atol=1e-5)


@pytest.mark.parametrize("types", [OLD, NEW])
def test_a_recurrent_model_of_theirs(
    tmp_path: Path, types: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    folder = write(tmp_path / "a", "mamba2", types=types)
    Embedder.load(folder, "float32", "cpu")
    assert [record.levelname for record in told(caplog)] == ["WARNING"]
    frame(folder, end=True)
    ours = Embedder.load(folder, "float32", "cpu")
    assert len(told(caplog)) == 1
    np.testing.assert_allclose(ours.encode(TEXTS), theirs(folder), atol=1e-5)


@pytest.mark.parametrize(
    ("types", "mode", "message"),
    [
        (
            ["modeling.Reader", OLD["Pooling"]],
            "lasttoken",
            r"'pooling_mode_lasttoken' and 'modeling\.Reader'",
        ),
        (
            [*list(OLD.values())[:3], OLD["Dense"]],
            "lasttoken",
            r"'sentence_transformers\.models\.Dense'",
        ),
        (list(OLD.values())[:3], "mean", "'pooling_mode_mean_tokens'"),
        ([OLD["Transformer"]], "mean", "pools by nothing"),
        ([], "mean", r"modules\.json has an entry None"),
    ],
)
def test_other_modules_around_a_recurrent_model_are_refused(
    tmp_path: Path, types: list[str], mode: str, message: str
) -> None:
    folder = write(tmp_path / "a", "mamba2", mode=mode)
    write_modules(folder, types)
    with pytest.raises(CheckpointError, match=message):
        Embedder.load(folder)


@pytest.mark.parametrize(
    "code", ["modeling_mamba.EmbedMamba2", {"AutoModel": "owner/code--modeling.LlamaEmbedModel"}]
)
def test_a_recurrent_embedder_that_names_code_is_read_as_a_plain_one_and_says_so(
    tmp_path: Path, code: Any, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write(tmp_path / "a", "mamba2")
    plain = Embedder.load(folder).encode_query("where is it?")
    caplog.clear()
    change_config(folder, auto_map=code)
    assert np.array_equal(Embedder.load(folder).encode_query("where is it?"), plain)
    (line,) = [r.getMessage() for r in caplog.records if "names code" in r.getMessage()]
    named = code["AutoModel"] if isinstance(code, dict) else code
    assert named in line and str(folder) in line and "Mamba-2" in line


def test_code_with_tensors_of_its_own_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", "mamba2")
    change_config(folder, auto_map="modeling.EmbedMamba2")
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"pooler.weight": torch.ones(2)}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"unexpected tensor 'pooler\.weight'"):
        Embedder.load(folder)


def test_the_longest_text_stands_with_the_tokenizer_from_version_6_on(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", "bert", types=NEW, mode="mean")
    (folder / "sentence_bert_config.json").write_text(
        json.dumps({"transformer_task": "feature-extraction"})
    )
    frame(folder, model_max_length=17)
    ours = Embedder.load(folder, "float32", "cpu")
    assert ours.model.backbone.max_tokens == 17
    long = "the cat sat on the mat and the dog sat on the cat and the river runs to the sea"
    np.testing.assert_allclose(
        ours.encode([long], max_tokens=17), theirs(folder, [long]), atol=1e-5
    )
    frame(folder, model_max_length=int(1e30))
    assert Embedder.load(folder, "float32", "cpu").model.backbone.max_tokens == 40


@pytest.mark.parametrize("name", ["document", "passage", "corpus"])
def test_prompts_of_documents_have_three_names_and_a_default_is_reported(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write(tmp_path / "a", "bert", mode="mean")
    settings = {"prompts": {name: "the river ", "query": "a cat "}, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    ours = Embedder.load(folder, "float32", "cpu")
    message = "encode() adds no prompt; sentence-transformers adds 'a cat ': pass prompt='query'"
    assert [record.getMessage() for record in told(caplog)] == [f"{folder}: {message}"]
    np.testing.assert_allclose(
        ours.encode_document(TEXTS), theirs(folder, prompt_name=name), atol=1e-5
    )
    np.testing.assert_allclose(ours.encode_query(TEXTS), theirs(folder), atol=1e-5)


def test_lower_case_that_the_tokenizer_does_not_do(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", "bert", mode="mean")
    (folder / "sentence_bert_config.json").write_text(
        json.dumps({"max_seq_length": 30, "do_lower_case": True})
    )
    Embedder.load(folder)  # its tokenizer does
    spec = json.loads((folder / "tokenizer.json").read_text())
    spec["normalizer"]["lowercase"] = False
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    with pytest.raises(CheckpointError, match=r"do_lower_case"):
        Embedder.load(folder)
