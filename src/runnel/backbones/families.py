"""All families of backbones, by architecture; docs/contributing.md says how to add one."""

from __future__ import annotations

from runnel.backbones.base import Backbone
from runnel.backbones.encoder.model import Encoder
from runnel.backbones.mamba1.model import Mamba1
from runnel.backbones.mamba2.model import Mamba2
from runnel.backbones.mamba3.model import Mamba3
from runnel.backbones.rwkv7.model import Rwkv7
from runnel.backbones.xlstm.model import Xlstm

_RECURRENT: tuple[type[Backbone], ...] = (Mamba1, Mamba2, Mamba3, Rwkv7, Xlstm)
_ALL: tuple[type[Backbone], ...] = (*_RECURRENT, Encoder)
BACKBONES = {family.architecture: family for family in _ALL}
_NAMES = ", ".join(family.title for family in _RECURRENT)
READS = (  # for messages
    f"runnel reads checkpoints of {_NAMES} and BERT; sentence-transformers reads others, as embedders and rerankers"
)
