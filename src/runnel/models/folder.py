"""A model folder: its files, and which package loads it.

config.json        architecture, heads, templates, prompts, markers, weight format; the key "runnel"
                   marks the layout
model.safetensors  `backbone.*` and `heads.*`; with int8 weights each matrix has a `.scale`, one
                   number per row
tokenizer.json     Hugging Face tokenizers file; RWKV World: rwkv_vocab_v20230424.txt
README.md          model card
modules.json, config_sentence_transformers.json   for sentence-transformers
                                                  (`runnel.integrations.sentence_transformers`)

`models/pocket` reads the folder of an encoder that finds sentences, without torch, if the CPU has
kernels for the dtype. `models/recurrent` reads the other folders that runnel wrote, with torch.
`models/foreign` reads folders that other libraries wrote.
"""

from pathlib import Path

from runnel.backbones.checkpoint.finding import find_checkpoint
from runnel.checks import expect_choice
from runnel.config import read_model_json
from runnel.errors import needing
from runnel.models.description import Description
from runnel.models.head import POOLINGS, Pooling
from runnel.models.model import Job, Model, WeightDtype
from runnel.models.pocket.model import load_pocket

BUILT_IN = {
    name: Path(__file__).parent / "built_in" / name.replace("-", "_")
    for name in ("pocket", "pocket-mamba2", "minilm-mamba2")
}
# the folder of a model of sentence-transformers inside a checkpoint of a training run
LIBRARY_FOLDER = "library"


def find_model(name: str | Path) -> tuple[Path, str]:
    """Return the folder or weights file of a model, and the prefix "st" or "st-code" of its name,
    which asks for sentence-transformers (`load_model`); "": none.
    """
    prefix, _, plain = str(name).partition(":")
    prefix = prefix if prefix in ("st", "st-code") else ""
    place = plain if prefix else str(name)
    path = BUILT_IN.get(str(name)) or Path(place).expanduser()
    if not place or not path.is_dir():
        path = find_checkpoint(plain if prefix else name, BUILT_IN, code=prefix == "st-code")
    # around it is the training's module (`integrations/sentence_transformers.py`), not the model
    inside = path / LIBRARY_FOLDER
    return (inside if inside.is_dir() else path), prefix


def load_model(
    name: str | Path,
    dtype: WeightDtype = "auto",
    device: str = "auto",
    *,
    pooling: Pooling | None = None,
    template: str | None = None,
    job: Job = "embed",
    arrays: bool = False,
) -> Model:
    """Load a built-in model (`BUILT_IN`), a model folder, a bare checkpoint, a
    sentence-transformers folder or a hub id.

    Parts that a folder of another library lacks are supplied by `models/foreign`. `st:NAME` is
    loaded with sentence-transformers, `st-code:NAME` with code that comes with it.

    Args:
        pooling: as for `Embedder.load`; a pooling other than the model's leaves out its trained
            projection.
        template: as for `Reranker.load`.
        job: what the model is loaded for. For "rerank", a transformer without a layer for pairs
            gets an untrained one, and no head.
        arrays: read the model without torch, on a CPU, if that is possible. Such a model cannot be
            trained; `Model.with_torch` returns one that can.

    Raises:
        CheckpointError: the model is missing or cannot be used; the message says why.
        InputError: the pooling or template is unknown or does not fit this model.
        MissingDependency: it needs torch, which is not installed.
    """
    if pooling is not None:
        expect_choice(pooling, POOLINGS, "pooling")
    path, prefix = find_model(name)
    source = str(name)
    folder = path if path.is_dir() else path.parent
    config = read_model_json(folder / "config.json", default={})
    read = Description.read(config["runnel"], source) if "runnel" in config else None
    if arrays and read is not None and not (prefix or pooling or template):
        pocket = load_pocket(folder, read, dtype, device, source)
        if pocket is not None:
            return pocket
    with needing(f"the model {source} needs torch", "recurrent"):
        from runnel.models.foreign.loading import load_foreign
        from runnel.models.foreign.transformers import apply_choices
        from runnel.models.recurrent.model import read_folder
    if read is None or prefix:
        return load_foreign(
            path,
            dtype,
            device,
            source,
            prefix=prefix,
            pooling=pooling,
            template=template,
            job=job,
        )
    model = read_folder(path, dtype, source, device)
    # a model that runnel wrote takes the user's pooling and pair template too
    apply_choices(model, folder, pooling, template)
    return model
