"""A model as small as can be with all three jobs, random weights: everything
but quality is real.
"""

import dataclasses
import json
import shutil
import string
from pathlib import Path

import torch
from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers import models, normalizers, pre_tokenizers
from torch import nn

from runnel.backbones.base import Backbone
from runnel.backbones.encoder.config import EncoderConfig
from runnel.backbones.encoder.model import Encoder
from runnel.backbones.mamba2.model import Mamba2, Mamba2Config, Mamba2Mixer
from runnel.backbones.mamba2_encoder.model import Mamba2Encoder, Mamba2EncoderConfig
from runnel.models.model import Model
from runnel.models.pocket.heads import Judge, PairJudge, VectorRelevance, VectorScore
from runnel.models.recurrent.heads import (
    EndScore,
    EndVector,
    HeldHead,
    MatchScore,
    MeanVector,
    PlainMeanVector,
    TokenFeatures,
)
from runnel.models.recurrent.model import TorchModel
from runnel.text.templates import QUERY_LINE_THEN_DOCUMENT, Template
from runnel.text.tokenizers import read_tokenizer

TEMPLATES = {
    "document": "{begin}{document}{end}",
    "rerank": "{begin}{document}{end}{query}{end}",
    "sentences": "{begin}{query}{end}{document}",
}
WORDS = [
    "the",
    "a",
    "of",
    "finally",
    "clause",
    "is",
    "executed",
    "cat",
    "dog",
    "sat",
    "on",
    "mat",
    "river",
    "runs",
    "to",
    "sea",
]


def write_tokenizer(folder: Path) -> None:
    """A WordPiece tokenizer that can spell any ASCII word."""
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        *WORDS,
        *string.ascii_lowercase,
        *string.digits,
        *string.punctuation,
    ]
    pieces += ["##" + c for c in string.ascii_lowercase + string.digits]
    vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = HuggingFaceTokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"cls_token": "[CLS]", "sep_token": "[SEP]"})
    )


def tiny_model(
    folder: Path, *, papers_heads: bool = False, seed: int = 0, backbone: Backbone | None = None
) -> Model:
    """Two Mamba-2 layers, or `backbone` (32 wide); `papers_heads`: the papers' heads, not the
    built-in model's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder)
    tokenizer = read_tokenizer(folder, begin=2, end=3)
    torch.manual_seed(seed)
    if backbone is None:
        backbone = Mamba2(
            Mamba2Config(vocab_size=128, hidden_size=32, num_layers=2, state_size=16, head_size=16)
        )
    backbone.requires_grad_(False)
    backbone.eval()
    if papers_heads:
        heads = nn.ModuleDict(
            {"embed": EndVector(), "sentences": EndScore(32), "rerank": EndScore(32)}
        )
    else:
        features = TokenFeatures(backbone.vocab_size, 32)
        nn.init.normal_(features.mark_vectors)
        nn.init.normal_(features.log_weight, std=0.3)
        features.idf.uniform_()
        heads = nn.ModuleDict(
            {
                "features": features,
                "embed": MeanVector(32),
                "sentences": MatchScore(32, 2, 8),
                "rerank": MatchScore(32, 1, 8),
            }
        )
    templates = {name: Template.parse(text) for name, text in TEMPLATES.items()}
    return TorchModel(
        backbone, tokenizer, heads, templates, {"query": "a river runs: "}, source="tiny"
    )


def write_embedding_rwkv(folder: Path) -> Path:
    """The tiny EmbeddingRWKV of the golden outputs, its embedder and its reranker, with a
    vocabulary of bytes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("rwkv0b0-emb-curriculum.pth", "rwkv0b0-reranker.pth"):
        shutil.copy(Path(__file__).parents[1] / "golden" / "embedding-rwkv-tiny" / name, folder)
    lines = [f"{number + 1} {bytes([number])!r} 1\n" for number in range(256)]
    (folder / "rwkv_vocab_v20230424.txt").write_text("".join(lines))
    return folder


def tiny_encoder(
    folder: Path, *, block: int = 12, longest: int = 20, mixers: bool = False, **layers: int
) -> Model:
    """An encoder of two layers that reads passages of `block` tokens, and texts of up to `longest`
    as one, with all its heads; `mixers`: with Mamba-2 in place of attention.
    """
    sizes = {
        "num_heads": 2,
        "intermediate_size": 48,
        "max_positions": longest + 2,
        "passage_tokens": block,
    }
    torch.manual_seed(2)
    backbone: Backbone
    if mixers:
        backbone = Mamba2Encoder(Mamba2EncoderConfig(128, 32, 2, **sizes, begin_id=2, state_size=8))
        for mixer in backbone.modules():
            if isinstance(mixer, Mamba2Mixer):  # so that what came before has weight
                nn.init.normal_(mixer.out_proj.weight, std=0.5)
    else:
        backbone = Encoder(EncoderConfig(128, 32, 2, **sizes, begin_id=2, **layers))
    model = tiny_model(folder, backbone=backbone)
    features = model.heads["features"]
    assert isinstance(features, TokenFeatures)
    head = HeldHead(VectorScore(32, size=8))
    nn.init.normal_(head.out.weight)
    own = {
        "embed": PlainMeanVector(),
        "sentences": head,
        "rerank": HeldHead(VectorRelevance(32)),
    }
    heads = nn.ModuleDict({"features": model.heads["features"], **own})
    nn.init.zeros_(features.log_weight)
    templates = {"document": Template.parse(TEMPLATES["document"])}
    return TorchModel(model.backbone, model.tokenizer, heads, templates, source="tiny encoder")


def judging_encoder(folder: Path) -> Model:
    """A tiny encoder with a second look, whose documents differ in whether they answer."""
    model = tiny_encoder(folder, judge_layers=1, pair_layers=1)
    judge = HeldHead(Judge(32)).requires_grad_(False)
    pair = HeldHead(PairJudge(32)).requires_grad_(False)
    nn.init.normal_(judge.document.weight)
    nn.init.normal_(pair.out.weight)
    judge.calibration[0] = 0.9
    model.heads.update({"judge": judge, "pair": pair})
    model.refresh()
    return model


def byte_level_model(folder: Path, *, papers_heads: bool = False) -> Model:
    """`tiny_model` with a byte-level vocabulary, in which whitespace and line ends are tokens."""
    from helpers.tokenizers_for_tests import build

    tokenizer = build("neox_like")
    config = Mamba2Config(
        vocab_size=tokenizer.vocab_size, hidden_size=32, num_layers=2, state_size=16, head_size=16
    )
    torch.manual_seed(1)
    model = tiny_model(folder, papers_heads=papers_heads, backbone=Mamba2(config))
    return dataclasses.replace(
        model, tokenizer=tokenizer, templates={"sentences": QUERY_LINE_THEN_DOCUMENT}
    )
