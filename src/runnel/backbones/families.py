"""All families of backbones, one line each; docs/contributing.md says how to add one."""

from runnel.backbones.base import Backbone
from runnel.backbones.encoder.model import Encoder
from runnel.backbones.mamba1.model import Mamba1
from runnel.backbones.mamba2.model import Mamba2
from runnel.backbones.mamba2_encoder.model import Mamba2Encoder
from runnel.backbones.rwkv7.model import Rwkv7
from runnel.backbones.xlstm.model import Xlstm

# In this order published checkpoints are recognized; of a `Mamba2Encoder` there are only runnel's.
FAMILIES: tuple[type[Backbone], ...] = (Encoder, Rwkv7, Xlstm, Mamba1, Mamba2)
BACKBONES: dict[str, type[Backbone]] = {
    **{family.architecture: family for family in FAMILIES},
    Mamba2Encoder.architecture: Mamba2Encoder,
}
