"""A tiny random transformer of each architecture, as folders of the transformers library."""

import json
from pathlib import Path
from typing import Any

import torch

VOCABULARY = 128  # room for the tokenizer of `tiny.py`
LONGEST = 40  # positions, where an architecture has them

_SIZES = {"vocab_size": VOCABULARY, "pad_token_id": 0}
_ENCODER = _SIZES | {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
_ENCODER["max_position_embeddings"] = LONGEST
_DECODER = {**_ENCODER, "bos_token_id": 2, "eos_token_id": 3}
_ROBERTA = {
    **_ENCODER,
    "max_position_embeddings": LONGEST + 2,
    "pad_token_id": 1,
    "type_vocab_size": 1,
}
_BART = _SIZES | {
    "d_model": 32,
    "max_position_embeddings": LONGEST,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
_BART |= {
    f"{half}_{name}": value
    for half in ("encoder", "decoder")
    for name, value in [("layers", 2), ("attention_heads", 4), ("ffn_dim", 48)]
}
CONFIGS: dict[str, dict[str, Any]] = {
    "bert": _ENCODER,
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "electra": {**_ENCODER, "embedding_size": 16},
    # Local attention is in the second layer; the first reads all tokens.
    "modernbert": {**_DECODER, "local_attention": 8, "cls_token_id": 2, "sep_token_id": 3},
    "bart": {**_BART, "decoder_start_token_id": 3, "forced_eos_token_id": None},
    "t5": _SIZES
    | {
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 48,
        "num_layers": 2,
        "num_heads": 4,
        "feed_forward_proj": "gated-gelu",
    }
    | {"eos_token_id": 3, "decoder_start_token_id": 0},
    "opt": {key: value for key, value in _DECODER.items() if key != "intermediate_size"}
    | {"ffn_dim": 48, "word_embed_proj_dim": 16, "do_layer_norm_before": False},
    "gpt_neox": {**_DECODER, "rotary_pct": 0.25},
    "llama": {**_DECODER, "num_key_value_heads": 2},
    "mistral": {**_DECODER, "num_key_value_heads": 2, "sliding_window": 8},
    "qwen2": {**_DECODER, "num_key_value_heads": 2},
}


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def library_class(architecture: str, kind: str) -> Any:
    """E.g. ("bert", "Model") -> transformers.BertModel."""
    import transformers

    stem = type(transformers.AutoConfig.for_model(architecture)).__name__.removesuffix("Config")
    return getattr(transformers, stem + kind)


def write_transformer(
    folder: Path, architecture: str, kind: str = "Model", *, seed: int = 0, **changes: Any
) -> Any:
    """Save a random model of the class `kind` with its config; no weight is at a start value that
    could hide a mistake.
    """
    import transformers

    torch.manual_seed(seed)
    config = transformers.AutoConfig.for_model(architecture, **(CONFIGS[architecture] | changes))
    model = library_class(architecture, kind)(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    model.eval()
    model.save_pretrained(folder)
    return model
