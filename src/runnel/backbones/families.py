"""All families of backbones, by architecture; docs/adding-a-backbone.md says how to add one."""

from __future__ import annotations

from runnel.backbones.base import Backbone
from runnel.backbones.encoder.model import Encoder
from runnel.backbones.mamba1.model import Mamba1
from runnel.backbones.mamba2.model import Mamba2
from runnel.backbones.rwkv7.model import Rwkv7
from runnel.backbones.transformer.model import Transformer
from runnel.backbones.xlstm.model import Xlstm

BACKBONES: dict[str, type[Backbone]] = {cls.architecture: cls for cls in (Mamba1, Mamba2, Rwkv7, Xlstm, Encoder, Transformer)}
