"""Checkpoints of other libraries and papers: vocabularies, markers, templates and heads, and
tokenizers that are missing.
"""

import json
import re
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.texts import repeat
from helpers.tiny import write_tokenizer
from helpers.tiny_training import make_item
from helpers.tokenizers_for_tests import build, published_file
from safetensors.torch import load_file, save_file

from runnel import Embedder, Reranker, SentenceRetriever
from runnel.backbones.families import BACKBONES
from runnel.backbones.mamba2.model import Mamba2, Mamba2Config
from runnel.errors import CheckpointError
from runnel.lab.evaluation.evidence import by_retriever
from runnel.models.foreign.bare import markers, vocabulary_name
from runnel.records import Sentence
from runnel.text.library import LibraryTokenizer
from runnel.text.tokenizer import LIBRARY_FILE, WORLD_FILE

pytestmark = pytest.mark.filterwarnings("ignore:::transformers")

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
# Golden folder, its embedding's name, the published rows, the vocabulary, begin and end ids.
CASES = {
    "mamba1": ("mamba1-tiny-original", "backbone.embedding.weight", 50280, "gpt_neox_20b", [], [0]),
    "mamba2": ("mamba2-tiny-hf", "backbone.embeddings.weight", 50288, "gpt_neox_20b", [], [0]),
    "codestral": (
        "codestral-tiny-native",
        "model.backbone.embedding.weight",
        32768,
        "sentencepiece_like",
        [1],
        [2],
    ),
    "rwkv7": ("rwkv7-tiny-official", "emb.weight", 65536, "rwkv_world", [0], [0]),
    "rwkv7-pile": ("rwkv7-tiny-official", "emb.weight", 50304, "gpt_neox_20b", [0], [0]),
    "xlstm": ("xlstm-tiny-hf", "backbone.embeddings.weight", 50304, "gpt_neox_20b", [0], [0]),
}
TEXT = "The river runs to the sea.\n\nIt is long — 今天天气很好。"


def checkpoint(case: str, folder: Path) -> Path:
    """A golden checkpoint with as many rows of embeddings as the published one."""
    name, key, rows, *_ = CASES[case]
    folder.mkdir(parents=True, exist_ok=True)
    for path in (GOLDEN / name).iterdir():
        if path.suffix in (".bin", ".pth"):
            torch.save(enlarged(torch.load(path, weights_only=True), key, rows), folder / path.name)
        elif path.suffix == ".safetensors" and path.stem != "expected":
            save_file(
                enlarged(load_file(path), key, rows), folder / path.name, metadata={"format": "pt"}
            )
        elif path.name == "config.json":
            config = {
                **json.loads(path.read_text()),
                "vocab_size": rows,
                "bos_token_id": 5,
                "eos_token_id": 2,
            }
            (folder / path.name).write_text(json.dumps(config))
    return folder


def enlarged(tensors: dict[str, torch.Tensor], key: str, rows: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(rows, tensors[key].shape[1], generator=generator).to(tensors[key].dtype)
    heads = {"head.weight", "lm_head.weight", "model.lm_head.weight"}
    return {
        name: table.clone() if name == key or name in heads else tensor
        for name, tensor in tensors.items()
    }


@pytest.mark.parametrize("case", sorted(CASES))
def test_texts_and_templates_stand_between_the_markers(case: str, tmp_path: Path) -> None:
    *_, name, begin, end = CASES[case]
    folder = checkpoint(case, tmp_path / "model")
    build(name).save(folder)
    # never trusted
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "!", "eos_token": "!"}))
    embedder = Embedder.load(folder, dtype="float32")
    vector = embedder.encode(TEXT)
    ids = [*begin, *build(name).encode(TEXT).ids.tolist(), *end]
    hidden = embedder.model.backbone(torch.tensor(ids))[0][-1]
    np.testing.assert_allclose(vector, (hidden / hidden.norm()).numpy(), atol=1e-5)

    templates = embedder.model.templates
    before = "{begin}" if begin else ""
    assert str(templates["rerank"]) == before + "document: {document}\n\nquery: {query}{end}"
    assert str(templates["document"]) == before + "{document}{end}"
    assert str(templates["sentences"]) == before + "{query}\n{document}"
    # Mistral's tokenizer puts a space in front of a text; a literal after `{begin}` is the start of
    # one.
    ids = templates["rerank"].before("document").render(embedder.model.tokenizer).ids.tolist()
    assert ids == [*begin, *embedder.model.tokenizer.encode("document:").ids.tolist()]
    with pytest.raises(CheckpointError, match="has no 'rerank' head"):
        Reranker(embedder.model)

    stream = embedder.stream()
    for letter in TEXT:
        stream.feed(letter)
    np.testing.assert_allclose(stream.embedding(), vector, atol=1e-5)

    embedder.save(tmp_path / "saved")
    np.testing.assert_array_equal(
        Embedder.load(tmp_path / "saved", dtype="float32").encode(TEXT), vector
    )
    assert {path.name for path in (tmp_path / "saved").iterdir()} & {LIBRARY_FILE, WORLD_FILE} == {
        WORLD_FILE if name == "rwkv_world" else LIBRARY_FILE
    }


@pytest.mark.parametrize(
    ("architecture", "begin"), [("mamba1", None), ("mamba2", None), ("rwkv7", 3), ("xlstm", 3)]
)
def test_other_vocabularies_keep_their_own(architecture: str, begin: int | None) -> None:
    tokenizer = LibraryTokenizer(build("neox_like")._source, begin=3, end=4)
    assert vocabulary_name(tokenizer) is None
    assert markers(BACKBONES[architecture], tokenizer) == (begin, 4)
    # the ids in xLSTM-7B's config, which contradict it
    assert markers(
        BACKBONES["xlstm"], LibraryTokenizer(build("gpt_neox_20b")._source, begin=1, end=2)
    ) == (0, 0)


@pytest.fixture
def offline_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    cache = tmp_path / "cache"
    cache.mkdir()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return cache


def test_gpt_neox_is_fetched_once(
    tmp_path: Path, offline_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def download(repository: str, file: str) -> str:
        asked.append((repository, file))
        stored = offline_cache / "models--EleutherAI--gpt-neox-20b"
        commit = repeat("0", 40)
        snapshot = stored / "snapshots" / commit
        snapshot.mkdir(parents=True)
        (stored / "refs").mkdir()
        (stored / "refs" / "main").write_text(commit)
        return shutil.copy(published_file("gpt_neox_20b"), snapshot / file)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    for case in ("mamba1", "xlstm"):  # the second finds it in the cache
        embedder = Embedder.load(checkpoint(case, tmp_path / case), dtype="float32")
        assert embedder.model.tokenizer.vocab_size == 50277
    assert asked == [("EleutherAI/gpt-neox-20b", "tokenizer.json")]
    embedder.save(tmp_path / "saved")
    assert (tmp_path / "saved" / "tokenizer.json").read_text() == published_file(
        "gpt_neox_20b"
    ).read_text()


NEOX_FILE = r"tokenizer\.json of EleutherAI/gpt-neox-20b"
MISTRAL_FILE = r"tokenizer\.json of mistralai/Mamba-Codestral-7B-v0\.1"


@pytest.mark.parametrize(
    ("case", "files"),
    [
        ("xlstm", NEOX_FILE),
        ("rwkv7-pile", NEOX_FILE),
        ("rwkv7", r"rwkv_vocab_v20230424\.txt"),
        ("codestral", MISTRAL_FILE),
    ],
)
def test_the_error_names_the_missing_file(
    case: str, files: str, tmp_path: Path, offline_cache: Path
) -> None:
    with pytest.raises(CheckpointError, match=f"model has no tokenizer: .*needs {files}"):
        Embedder.load(checkpoint(case, tmp_path / "model"))
    # of another size: it is not guessed
    with pytest.raises(CheckpointError, match="has no tokenizer: neither"):
        Embedder.load(GOLDEN / "mamba1-tiny-original")


def test_the_rerankers_of_paper_b_are_converted_as_the_docs_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(GOLDEN / "mamba1-tiny-hf", tmp_path / "base")
    write_tokenizer(tmp_path / "base")
    weights = load_file(tmp_path / "base/model.safetensors")
    (tmp_path / "base/model.safetensors").unlink()
    backbone = {
        name.removeprefix("backbone."): tensor
        for name, tensor in weights.items()
        if name.startswith("backbone.")
    }
    linear = {"weight": torch.randn(1, 64), "bias": torch.randn(1)}
    theirs = {f"base_model.{name}": tensor for name, tensor in backbone.items()}
    theirs |= {f"regressor.classifier.{name}": tensor for name, tensor in linear.items()}
    torch.save(theirs, tmp_path / "pytorch_model.bin")

    monkeypatch.chdir(tmp_path)
    docs = (ROOT / "docs/models.md").read_text(encoding="utf-8")
    code = next(
        block
        for block in re.findall(r"(?:^    .*\n|^\n)+", docs, re.M)
        if "regressor.classifier" in block
    )
    exec("\n".join(line[4:] for line in code.splitlines()), {})

    reranker = Reranker.load(tmp_path / "rankmamba-130m", "float32", "cpu")
    assert str(reranker.model.templates["rerank"]) == "Document: {document}\n\nQuery: {query}{end}"
    encode = reranker.model.tokenizer.encode
    ids = [encode(text).ids.tolist() for text in ("Document: a dog runs", "Query: the river")]
    hidden = reranker.model.backbone(torch.tensor([*ids[0], *ids[1], 3]))[0][-1]
    expected = float(hidden @ linear["weight"][0] + linear["bias"])
    assert reranker.score("the river", ["a dog runs"])[0] == pytest.approx(expected, abs=1e-5)


def test_adapters_are_no_models(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "base_model_name_or_path": "meta-llama/x"})
    )
    torch.save({"base_model.model.score.weight": torch.zeros(1, 4)}, tmp_path / "adapter_model.bin")
    with pytest.raises(
        CheckpointError,
        match=r"adapter_config\.json",
    ):
        Embedder.load(tmp_path)


def by_units(result: tuple[np.ndarray, np.ndarray]) -> list[Sentence]:
    bounds, scores = result
    return [
        Sentence("", a, b, s, n)
        for n, ((a, b), s) in enumerate(zip(bounds.tolist(), scores, strict=True))
    ]


def test_a_single_pass_scanner_retrieves_sentences(tmp_path: Path) -> None:
    torch.manual_seed(0)
    backbone = Mamba2(
        Mamba2Config(vocab_size=128, hidden_size=32, num_layers=2, state_size=16, head_size=16)
    )
    tensors = {f"backbone.{k}": v for k, v in backbone.state_dict().items()}
    tensors |= {"binary_head.weight": torch.randn(1, 32), "binary_head.bias": torch.randn(1)}
    save_file(tensors, tmp_path / "model.safetensors")
    write_tokenizer(tmp_path)
    retriever = SentenceRetriever.load(tmp_path, dtype="float32")
    document = "The cat sat on the mat.A river runs to the sea."
    assert len(retriever.score("cat", document)) == 1, (
        "the released weights score groups of clauses"
    )
    first, second = retriever.score("cat", document, unit="sentence")
    ids = [
        *retriever.model.tokenizer.encode("cat").ids,
        *retriever.model.tokenizer.encode(document).ids,
    ]
    hidden = backbone(torch.tensor(ids))[0][[-8, -1]]
    expected = hidden @ tensors["binary_head.weight"][0] + tensors["binary_head.bias"]
    np.testing.assert_allclose([first.score, second.score], expected.detach().numpy(), atol=1e-4)
    # sentences are read without the whitespace between them, as in training, by all that reads
    plain = "\n\nThe cat sat on the mat.\n A river runs to the sea.  "
    edges = [0, plain.index("A river"), len(plain)]
    spans = [(a, b) for a, b in pairwise(edges)]
    for found in (
        retriever.score("cat", plain, unit="sentence"),
        retriever.score("cat", plain, spans=spans),
        retriever.score("cat", plain, unit="sentence", window=99, stride=99),
        next(retriever.score_many("cat", [plain], unit="sentence")),
        by_units(by_retriever(retriever)("cat", plain, spans)),
    ):
        assert [(s.start, s.end) for s in found] == spans
        np.testing.assert_allclose([s.score for s in found], [first.score, second.score], atol=1e-4)
    item = make_item(retriever.model, "cat", plain)
    assert item.request.ids.tolist() == ids, "training too"
    assert item.sentences.spans.tolist() == [[0, len(plain)]]
