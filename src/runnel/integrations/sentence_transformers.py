"""Models as modules of sentence-transformers, so that its trainers, losses, samplers, evaluators
and tools work on them.

In evaluation mode, on a CPU and without gradients, the vectors and scores are those of
`Embedder.encode` and `Reranker.score`, through the same engine; in training mode, with gradients or
on a GPU `models/recurrent/graph.py` computes them. Texts are cut at the document's end, so that end
markers and queries are kept.

LoRA: `add_lora(model[0].model, r=16, alpha=32)` before the trainer is made, `merge(model[0].model)`
after training. Until then only adapters and heads are saved, and a trainer's
`_load_from_checkpoint(path)` has to be `load_adapter(model[0].model, path)`.

    B  texts or pairs          n  tokens of the longest text
    d  width of its vectors    D  width of the backbone's hidden vectors
"""

import itertools
import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from runnel.checks import expect_count
from runnel.config import read_model_json
from runnel.errors import CheckpointError, InputError, needing
from runnel.integrations.calls import filled_places
from runnel.models.embedder import Embedder
from runnel.models.folder import LIBRARY_FOLDER, load_model
from runnel.models.model import Job, Model
from runnel.models.reranker import Reranker
from runnel.request import Request
from runnel.text.tokenizer import Tokenizer

# imported below, it warns of kernels that it could not download
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
with needing("training needs torch and sentence-transformers 6", "lab"):
    import torch
    from sentence_transformers import CrossEncoder, SentenceTransformer
    from sentence_transformers.base.modules import InputModule
    from torch import Tensor, nn
    from torch.nn.utils.rnn import pad_sequence

    from runnel.backbones.int8 import Int8Linear
    from runnel.backbones.library import Library
    from runnel.models.recurrent.adapters import FILE as ADAPTER_FILE
    from runnel.models.recurrent.adapters import save_adapter
    from runnel.models.recurrent.graph import (
        Long,
        make_pair,
        pair_scores,
        read,
        trains_pairs,
        vectors,
    )

log = logging.getLogger("runnel")
# what the library's options of loading may have
_OPTIONS: dict[str, tuple[str, ...]] = {
    "model_kwargs": ("dtype",),
    "processor_kwargs": ("model_max_length",),
    "config_kwargs": (),
}


def sentence_transformer(
    model: Model | Embedder | str | Path,
    *,
    long: Long | None = None,
    max_seq_length: int | None = None,
) -> SentenceTransformer:
    """Return a `SentenceTransformer` around an embedder, which it shares: training it trains the
    model.

    Args:
        model: a model, or what `Embedder.load` takes; this is loaded in fp32, to be trained.
        long: settings for training on long inputs.
        max_seq_length: cut texts to this many tokens (default: no cut).
    """
    module = EmbedderModule(_model(model, "embed"), long=long, max_seq_length=max_seq_length)
    return SentenceTransformer(
        modules=[module], prompts=module.model.prompts, similarity_fn_name="cosine"
    )


def cross_encoder(
    model: Model | Reranker | str | Path,
    *,
    long: Long | None = None,
    max_seq_length: int | None = None,
) -> CrossEncoder:
    """Return a `CrossEncoder` around a reranker; arguments as `sentence_transformer`. Scores are
    logits, without a sigmoid.
    """
    module = RerankerModule(_model(model, "rerank"), long=long, max_seq_length=max_seq_length)
    return CrossEncoder(modules=[module], activation_fn=nn.Identity())


def _model(model: Model | Embedder | Reranker | str | Path, job: Job) -> Model:
    if isinstance(model, Model):
        return model
    if isinstance(model, Embedder | Reranker):
        return model.model
    return load_model(model, dtype="float32", job=job)


class _ModelModule(InputModule):
    """The base of both modules: the model's parameters, its two modes, and files.

    Creating a module selects the parameters to train: the backbone's, or its adapters' if it has
    any, and the parameters of the heads that the job needs. `long` says how long inputs are trained
    on; `truncated` counts texts or pairs that were cut.
    """

    job: ClassVar[Job]
    config_file_name = "sentence_bert_config.json"  # config.json is the model's own

    def __init__(
        self, model: Model, *, long: Long | None = None, max_seq_length: int | None = None
    ) -> None:
        super().__init__()
        self.model = model.with_torch()
        self.long = long or Long()
        self.truncated = 0
        self.backbone = self.model.backbone
        self.heads = self.model.heads
        self.training = self.backbone.training
        self.max_seq_length = max_seq_length
        self._in_8_bits = any(isinstance(part, Int8Linear) for part in self.backbone.modules())
        adapted = self.backbone.adapted
        for name, parameter in self.backbone.named_parameters():
            parameter.requires_grad_(not self._in_8_bits and (not adapted or "lora_" in name))
        self.heads.requires_grad_(False)
        for parameter in self._trained():
            parameter.requires_grad_(True)
        # the weights that the kernels were last built from
        self._seen: list[tuple[int, int]] | None = None

    @abstractmethod
    def _trained(self) -> list[nn.Parameter]:
        """The parameters of heads that the job needs."""

    @property
    def max_seq_length(self) -> int | None:
        """The most tokens of a text or pair, including special tokens; None: no cut."""
        return self._max_seq_length

    @max_seq_length.setter
    def max_seq_length(self, value: int | None) -> None:
        if value is not None:
            expect_count(value, "max_seq_length")
        self._max_seq_length = None if value is None else int(value)
        self._warned = False

    @property
    def tokenizer(self) -> Tokenizer:  # type: ignore[override]
        # the library's annotation names its own kinds
        return self.model.tokenizer

    def gradient_checkpointing_enable(
        self,
        gradient_checkpointing_kwargs: dict[str, object] | None = None,
        every_n_layers: int = 1,
        offload: bool = False,
    ) -> None:
        """Enable `Long.recompute`, for `TrainingArguments(gradient_checkpointing=True)`."""
        asked = {
            **(gradient_checkpointing_kwargs or {}),
            "every_n_layers": every_n_layers,
            "offload": offload,
        }
        without_effect = {"use_reentrant": False, "every_n_layers": 1, "offload": False}
        if strange := {
            key: value for key, value in asked.items() if without_effect.get(key, ...) != value
        }:
            raise InputError(
                f"every layer is recomputed, so the options {strange} have no effect; leave"
                " them out"
            )
        self.long = replace(self.long, recompute=True)

    def train(self, mode: bool = True) -> Self:
        """Set the mode; kernels of evaluation mode are built only when the mode changes, not at
        every `encode`.
        """
        if mode and self._in_8_bits:
            raise InputError(
                f"{self.model.source} has 8-bit weights, which cannot be trained; load it with"
                ' dtype="float32"'
            )
        already_set = self.training == mode and self.backbone.training == mode
        if not already_set:
            with _outside_inference():
                super().train(mode)
                self.model.refresh()
            self._seen = self._versions()
        return self

    def _versions(self) -> list[tuple[int, int]]:
        """Return the address and version of each weight: equal lists mean that
        nothing has changed.
        """
        tensors = itertools.chain(self.parameters(), self.buffers())
        return [
            (tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version)
            for tensor in tensors
        ]

    def _infers(self) -> bool:
        """Return whether to use the engine; then rebuild what is derived from the weights if they
        have changed.
        """
        if self.training or torch.is_grad_enabled() or self.backbone.device.type != "cpu":
            return False
        if self._versions() != self._seen:
            with _outside_inference():
                self.backbone.eval()
                self.model.heads.float()  # `half` and `bfloat16` are for the backbone alone
                self.model.refresh()
            self._seen = self._versions()
        return True

    @contextmanager
    def _precision(self) -> Iterator[Long]:
        """Apply autocast, which trainers set around a whole model, only to the backbone
        (`Long.bf16`). Heads stay in fp32.
        """
        device = self.backbone.device.type
        cast = torch.is_autocast_enabled(device)
        if cast and torch.get_autocast_dtype(device) != torch.bfloat16:
            raise InputError(
                f"autocast is to {torch.get_autocast_dtype(device)}, which recurrent states"
                " overflow; use bf16=True"
            )
        with torch.autocast(device, enabled=False):
            yield replace(self.long, bf16=True) if cast else self.long

    def _tell(self, cut: int) -> None:
        self.truncated += cut
        if cut and not self._warned:
            log.warning(
                "%d of a batch were cut to max_seq_length=%s; `truncated` counts them all",
                cut,
                self.max_seq_length,
            )
            self._warned = True

    def save(
        self, output_path: str, *args: object, safe_serialization: bool = True, **kwargs: object
    ) -> None:
        """Write the model folder, always as safetensors; the library adds its own files. For a
        model with adapters, write only the adapters and the heads, as a checkpoint needs;
        `load_adapter` restores them.
        """
        if self.backbone.adapted:
            save_adapter(self.model, output_path)
            return
        # around it are the library's files for this module
        inside = isinstance(self.backbone, Library)
        folder = Path(output_path)
        self.model.write(folder / LIBRARY_FOLDER if inside else folder)
        if self.max_seq_length is not None:
            self.save_config(output_path)

    def get_config_dict(self) -> dict[str, int | None]:
        return {"max_seq_length": self.max_seq_length}

    @classmethod
    def load(  # type: ignore[override]
        cls, model_name_or_path: str, subfolder: str = "", **kwargs: Any
    ) -> Self:
        """Load a model; called by the library. Weights are fp32, or as in `load_model` with
        `model_kwargs={"dtype": ...}`; the library's `max_length` becomes `max_seq_length`.

        Raises:
            InputError: another backend than "torch", or options that mean nothing to the model.
        """
        if (backend := kwargs.get("backend", "torch")) != "torch":
            raise InputError(f'the backend is {backend!r}; a runnel model has only "torch"')
        folder = cls.load_dir_path(
            model_name_or_path,
            subfolder,
            token=kwargs.get("token"),
            cache_folder=kwargs.get("cache_folder"),
            revision=kwargs.get("revision"),
            local_files_only=bool(kwargs.get("local_files_only")),
        )
        folder = folder or model_name_or_path
        if (Path(folder) / ADAPTER_FILE).exists() and not (Path(folder) / "config.json").exists():
            raise CheckpointError(
                f"{folder} holds adapters and heads alone: load the model that they were trained"
                " on, and load_adapter() into it"
            )
        options = {name: kwargs.get(name) or {} for name in _OPTIONS}
        if strange := [
            f"{name}: {option}"
            for name, known in _OPTIONS.items()
            for option in sorted(options[name].keys() - known)
        ]:
            raise InputError(
                f"options that mean nothing to a runnel model: {', '.join(strange)}; leave them out"
            )
        saved = cls.load_config(folder).get("max_seq_length")
        return cls(
            load_model(
                folder,
                dtype=options["model_kwargs"].get("dtype", "float32"),
                device="cpu",
                job=cls.job,
            ),
            max_seq_length=options["processor_kwargs"].get("model_max_length", saved),
        )


class _Features(dict[str, object]):
    """Features whose `token_embeddings` are computed when the library asks for them, because those
    of long texts are large.
    """

    token_embeddings: Callable[[], Tensor]

    def __missing__(self, name: str) -> Tensor:
        if name == "token_embeddings":
            return self.token_embeddings()
        raise KeyError(name)


class EmbedderModule(_ModelModule):
    """An embedder: texts to `sentence_embedding`, unit vectors (B, d), and with the library's
    `output_value="token_embeddings"` the tokens' hidden vectors (n, D), markers included, before
    pooling.

    In evaluation mode a text without a token has the vector (1, 0, ..., 0), with one note.
    """

    job = "embed"

    @cached_property
    def _embedder(self) -> Embedder:
        return Embedder(self.model)

    def _trained(self) -> list[nn.Parameter]:
        features = self.model.features if self._embedder.pooling == "mean" else None
        return [
            *self.model.heads["embed"].parameters(),
            *([features.log_weight] if features else []),
        ]

    def get_embedding_dimension(self) -> int:
        return self._embedder.dimension

    def preprocess(  # type: ignore[override]
        self, inputs: Sequence[str], prompt: str | None = None, **kwargs: object
    ) -> dict[str, Tensor]:
        """Convert texts to `input_ids` (B, n) int64, padded at the end, and `attention_mask` (B, n)
        int64.
        """
        places = range(len(inputs)) if self.training else filled_places(self._embedder, inputs)
        texts = [inputs[place] for place in places]
        rendered = self._embedder.render(texts, prompt=prompt, max_tokens=self.max_seq_length)
        filled = dict(zip(places, rendered, strict=True))
        rows = [filled.get(place, np.empty(0, np.int32)) for place in range(len(inputs))]
        self._tell(self._embedder.truncated)
        return _padded(rows)

    def forward(self, features: dict[str, Any], **kwargs: object) -> dict[str, Any]:
        """Return the features, and `sentence_embedding` (B, d) fp32."""
        lengths = features["attention_mask"].sum(dim=1).tolist()
        ids = features["input_ids"].cpu().numpy().astype(np.int32)
        # a text without a token has none, not even markers
        rows = {place: ids[place, :length] for place, length in enumerate(lengths) if length}
        device = features["input_ids"].device
        result = torch.eye(1, self._embedder.dimension, device=device).repeat(len(ids), 1)
        if rows:
            result[[*rows]] = self._vectors([*rows.values()]).to(device)

        out = _Features(features, sentence_embedding=result)
        out.token_embeddings = partial(self._hidden, rows, features["input_ids"])
        return out

    def _vectors(self, rows: list[np.ndarray]) -> Tensor:
        """Return the unit vectors of rows of ids, (number of rows, d)."""
        if self._infers():
            with _outside_inference():
                return torch.from_numpy(np.stack(list(self._embedder.encode_rows(rows))))
        with self._precision() as long:
            return vectors(self.model, rows, long)

    def _hidden(self, rows: Mapping[int, np.ndarray], ids: Tensor) -> Tensor:
        """Return the hidden vectors (B, n, D) of the rows of a batch `ids`, by their places in it,
        with zeros elsewhere.
        """
        requests = [Request(row, range(len(row))) for row in rows.values()]
        with _outside_inference(), self._precision() as long:
            hidden = torch.zeros(*ids.shape, self.backbone.hidden_size)
            run = self.model.engine.run if self._infers() else partial(read, self.model, long=long)
            for place, result in zip(rows, run(requests) if rows else (), strict=True):
                hidden[place, : len(result.hidden)] = torch.as_tensor(result.hidden)
        return hidden.to(ids.device)

    def save(
        self, output_path: str, *args: object, safe_serialization: bool = True, **kwargs: object
    ) -> None:
        """Save as any module, with the prompts that the library has just written to the folder."""
        settings = Path(output_path) / "config_sentence_transformers.json"
        if settings.exists():
            prompts = _read_shared(settings).get("prompts", {})
            self.model.prompts = {name: text for name, text in prompts.items() if text}
        super().save(output_path)


class RerankerModule(_ModelModule):
    """A reranker: pairs of a query and a document to `scores`, logits (B, 1).

    Models that do not score one vector of a pair, such as pocket, score pairs but cannot be trained
    here (`trains_pairs`).
    """

    job = "rerank"

    @cached_property
    def _reranker(self) -> Reranker:
        return Reranker(self.model)

    def _trained(self) -> list[nn.Parameter]:
        head = self.model.head("rerank")
        features = self.model.features if head.inputs == "matches" else None
        trained = self.model.heads["rerank"].parameters()
        return [*trained, *(features.parameters() if features else [])]

    # the library's pairs may be of pictures and sounds too
    def preprocess(  # type: ignore[override]
        self,
        inputs: Sequence[Sequence[str]] | Sequence[str],
        prompt: str | None = None,
        **kwargs: object,
    ) -> dict[str, Any]:
        """Return the batch as {"pairs": a list of what `forward` scores}: token ids (`make_pair`),
        or the texts (query, document) of a model that cannot be trained here. Texts alone, whose
        tokens model cards count, become `input_ids` and `attention_mask`.
        """
        if all(isinstance(text, str) for text in inputs):
            batch = self.model.tokenizer.encode_batch([str(text) for text in inputs])
            return _padded([encoded.ids for encoded in batch])
        if not trains_pairs(self.model) and not self.training:
            return {"pairs": [((prompt or "") + query, document) for query, document in inputs]}
        pairs = [
            make_pair(self.model, (prompt or "") + query, document, self.max_seq_length)
            for query, document in inputs
        ]
        self._tell(sum(pair.cut > 0 for pair in pairs))
        return {"pairs": pairs}

    def forward(self, features: dict[str, Any], **kwargs: object) -> dict[str, Any]:
        """Return the features, and `scores` (B, 1) fp32."""
        pairs: list[Any] = features["pairs"]
        if not trains_pairs(self.model):
            # for what is derived from the weights: such a model has one way to score
            self._infers()
            with _outside_inference():
                scored = self._reranker.score_text_pairs(pairs, max_tokens=self.max_seq_length)
                scores = torch.from_numpy(scored).to(self.backbone.device)
            self._tell(self._reranker.truncated)
        elif self._infers():
            with _outside_inference():
                scores = torch.from_numpy(self._reranker.score_pairs(pairs)).to(
                    self.backbone.device
                )
        else:
            with self._precision() as long:
                scores = pair_scores(self.model, pairs, long)
        return {**features, "scores": scores[:, None]}


@contextmanager
def _outside_inference() -> Iterator[None]:
    """Leave inference mode, in which the library calls us: tensors made in it, such as states,
    cannot be changed outside it.
    """
    with torch.inference_mode(False), torch.no_grad():
        yield


def _read_shared(path: Path) -> Any:
    """Return the object in a JSON file that every process of a training run writes, and that one of
    them may just have begun.
    """
    for _ in range(1000):  # ten seconds
        with suppress(CheckpointError):
            return read_model_json(path)
        time.sleep(0.01)
    return read_model_json(path)


def _padded(rows: Sequence[np.ndarray]) -> dict[str, Tensor]:
    """`input_ids` (B, n) int64, with zeros after each row, and `attention_mask` (B, n) int64 of
    ones and zeros.
    """
    ids = [torch.as_tensor(row, dtype=torch.int64) for row in rows]
    return {
        "input_ids": pad_sequence(ids, batch_first=True),
        "attention_mask": pad_sequence([torch.ones_like(row) for row in ids], batch_first=True),
    }
