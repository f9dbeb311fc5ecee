"""Write tests/golden/transformers: tiny published layouts of transformers, with their vectors or
scores for a few texts.

    python -m tools.golden_transformers FOLDER

The weights are random, stored in fp16. The numbers are those of the transformers library in fp32,
pooled as the layout says.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

TEXTS = [
    "the cat sat on the mat",
    "dog",
    "a river runs to the sea and the dog is there finally",
    "clause 12, river!",
    "naïve 海",
]
QUERY = "is the cat on the mat?"
_SHAPE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
_CORPUS = [
    *TEXTS,
    "Is the cat on the mat? Rivers run to the sea; dogs sat in 1234 clauses, finally.",
] * 4


def word_piece() -> Tokenizer:
    """As BERT's: [CLS] text [SEP]."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    tokenizer.train_from_iterator(
        _CORPUS,
        trainers.WordPieceTrainer(vocab_size=120, special_tokens=special, show_progress=False),
    )
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def unigram() -> Tokenizer:
    """As XLM-R's: <s> text </s>, ids of <s>, <pad>, </s> and <unk> from 0."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(
        vocab_size=120, unk_token="<unk>", special_tokens=special, show_progress=False
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), add_prefix_space=False
    )
    return tokenizer


def byte_level() -> Tokenizer:
    """As OPT's: </s> text; ids of <s>, <pad> and </s> from 0."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=280, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        "</s> $A", "</s> $A </s> $B", [("</s>", 2)]
    )
    return tokenizer


_BERT_TOKENS = {
    "tokenizer_class": "BertTokenizer",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
}
_XLMR_TOKENS = {
    "bos_token": "<s>",
    "cls_token": "<s>",
    "eos_token": "</s>",
    "sep_token": "</s>",
    "pad_token": "<pad>",
}
_OPT_TOKENS = {"bos_token": "</s>", "eos_token": "</s>", "pad_token": "<pad>"}


@torch.no_grad()
def write(
    folder: Path, model: Any, tokenizer: Tokenizer, tokens: dict[str, str], files: dict[str, Any]
) -> Any:
    """Write a folder of the transformers library and more JSON files; return the model in fp32."""
    for parameter in model.parameters():
        parameter += 0.1 * torch.randn_like(parameter)
    model.half().save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, content in {
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"} | tokens,
        **files,
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content, indent=1) + "\n")
    return model.float().eval()


def pooled(pooling: str, longest: int, prompts: dict[str, str]) -> dict[str, Any]:
    """Return the files of sentence-transformers."""
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    named = [(path, f"sentence_transformers.models.{kind}") for path, kind in kinds.items()]
    return {
        "modules.json": [
            {"idx": n, "name": str(n), "path": path, "type": kind}
            for n, (path, kind) in enumerate(named)
        ],
        "config_sentence_transformers.json": {"prompts": prompts},
        "1_Pooling/config.json": {"word_embedding_dimension": 32, f"pooling_mode_{pooling}": True},
        "sentence_bert_config.json": {"max_seq_length": longest, "do_lower_case": False},
    }


@torch.no_grad()
def vectors(
    model: Any, tokenizer: Tokenizer, prefix: str, pooling: str, end: tuple[int, ...] = ()
) -> list[list[float]]:
    """Return the unit vectors of all texts."""
    found = []
    for text in TEXTS:
        hidden = model(
            torch.tensor([[*tokenizer.encode(prefix + text).ids, *end]])
        ).last_hidden_state[0]
        found.append(
            F.normalize(
                {"mean": hidden.mean(0), "cls": hidden[0], "last": hidden[-1]}[pooling], dim=0
            ).tolist()
        )
    return found


@torch.no_grad()
def scores(model: Any, tokenizer: Tokenizer) -> list[float]:
    """Return the logits of all pairs."""
    encoded = [tokenizer.encode(QUERY, text) for text in TEXTS]
    return [
        float(
            model(torch.tensor([one.ids]), token_type_ids=torch.tensor([one.type_ids])).logits[0, 0]
        )
        for one in encoded
    ]


def main(folder: Path) -> None:
    """Write all folders."""
    torch.manual_seed(0)
    hf: Any = transformers
    expected: dict[str, Any] = {}
    tokenizer = word_piece()
    bert = {"vocab_size": 120, "max_position_embeddings": 40, "pad_token_id": 0, **_SHAPE}
    files = pooled("mean_tokens", 30, {"query": "the river "})
    model = write(
        folder / "bert-mean", hf.BertModel(hf.BertConfig(**bert)), tokenizer, _BERT_TOKENS, files
    )
    prefixes = {"document": "", "query": "the river "}
    expected["bert-mean"] = {
        kind: vectors(model, tokenizer, prefix, "mean") for kind, prefix in prefixes.items()
    }
    files = pooled("cls_token", 38, {})
    model = write(
        folder / "bert-cls", hf.BertModel(hf.BertConfig(**bert)), tokenizer, _BERT_TOKENS, files
    )
    expected["bert-cls"] = {"document": vectors(model, tokenizer, "", "cls")}
    pairs = hf.BertForSequenceClassification(hf.BertConfig(**bert, num_labels=1))
    expected["bert-pairs"] = {
        "scores": scores(
            write(folder / "bert-pairs", pairs, tokenizer, _BERT_TOKENS, {}), tokenizer
        )
    }

    tokenizer = unigram()
    prefixes = {"document": "passage: ", "query": "query: "}
    xlmr = {
        "vocab_size": 120,
        "max_position_embeddings": 42,
        "type_vocab_size": 1,
        "pad_token_id": 1,
        **_SHAPE,
    }
    files = pooled("mean_tokens", 38, {"query": "query: ", "passage": "passage: "})
    model = write(
        folder / "xlmr-mean",
        hf.XLMRobertaModel(hf.XLMRobertaConfig(**xlmr)),
        tokenizer,
        _XLMR_TOKENS,
        files,
    )
    expected["xlmr-mean"] = {
        kind: vectors(model, tokenizer, prefix, "mean") for kind, prefix in prefixes.items()
    }

    tokenizer = byte_level()
    opt = {
        "vocab_size": 280,
        "ffn_dim": 48,
        "word_embed_proj_dim": 32,
        "max_position_embeddings": 40,
    }
    opt |= {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 2} | {
        k: v for k, v in _SHAPE.items() if "intermediate" not in k
    }
    model = write(folder / "opt", hf.OPTModel(hf.OPTConfig(**opt)), tokenizer, _OPT_TOKENS, {})
    expected["opt"] = {"document": vectors(model, tokenizer, "", "last", (2,))}
    for name, numbers in expected.items():
        (folder / name / "expected.json").write_text(
            json.dumps({"query_text": QUERY, "texts": TEXTS, **numbers}) + "\n"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
