"""Recurrent checkpoints whose config says that they read both ways, or names code: never read in one direction in silence."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from runnel.backbones.checkpoint.load import load_backbone
from runnel.errors import CheckpointError

GOLDEN = Path(__file__).parents[2] / "golden" / "mamba2-tiny-hf"


def write(folder: Path, said: dict[str, Any]) -> Path:
    shutil.copy(GOLDEN / "model.safetensors", folder)
    (folder / "config.json").write_text(json.dumps(json.loads((GOLDEN / "config.json").read_text()) | said))
    return folder


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"is_causal": False}, "is_causal is False"),
        ({"bidirectional": True}, "bidirectional is True"),
        ({"bidirectional_strategy": "add"}, "bidirectional_strategy is 'add'"),
        ({"architectures": ["BiMamba2ForMaskedLM"]}, "BiMamba2ForMaskedLM"),
        ({"auto_map": {"AutoModel": "modeling.BidirectionalMamba2"}}, "modeling.BidirectionalMamba2"),
        ({"auto_map": {"AutoModel": "modeling.EmbedMamba2"}}, "names code, modeling.EmbedMamba2"),
        ({"auto_map": "modeling.EmbedMamba2"}, "names code, modeling.EmbedMamba2"),
    ],
)
def test_models_that_may_read_both_ways(tmp_path: Path, said: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=f"config.json: .*{message}"):
        load_backbone(write(tmp_path, said))


@pytest.mark.parametrize(
    "said",
    [
        {"is_causal": True},
        {"bidirectional": False, "architectures": ["Mamba2ForCausalLM"]},
        {"auto_map": {"AutoConfig": "configuration.Mamba2Config", "AutoModel": "owner/code--modeling.Mamba2Model"}},
        {"auto_map": {"AutoTokenizer": ["tokenization.BiTokenizer", None]}},
    ],
)
def test_models_that_read_one_way(tmp_path: Path, said: dict[str, Any]) -> None:
    assert load_backbone(write(tmp_path, said)).title == "Mamba-2"
