"""Models in the library mteb: an embedder as its encoder, a reranker as its cross-encoder, an index
as its search.

A task gets the instruction that paper D (docs/papers.md), tables 12 and 13, has for its name, or
else for its type; a task that is in neither gets mteb's own. Instructions come before the queries
of retrieval and reranking, and before all texts of other tasks (D, G.2). There is one exception:
CQADupstackUnixRetrieval gets the instruction of CQADupstackGamingRetrieval, because the paper
prints the instruction of ClimateFEVER for it.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from runnel.errors import InputError, needing
from runnel.files import digest
from runnel.integrations.calls import filled_places, loaded
from runnel.models.embedder import Embedder
from runnel.models.model import Model
from runnel.models.reranker import Reranker
from runnel.records import Document, titled
from runnel.search.index import Index

# mteb imports bitsandbytes, which then warns of kernels that it could not download
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
with needing("this needs mteb", "lab"):
    from mteb.abstasks.task_metadata import TaskMetadata
    from mteb.models.abs_encoder import AbsEncoder
    from mteb.models.model_meta import ModelMeta, ScoringFunction
    from mteb.types import PromptType

Batches = Iterable[Mapping[str, Sequence[str]]]  # each has the texts of a batch as "text"
_QUERIES_ONLY = ("Retrieval", "Reranking", "InstructionRetrieval", "InstructionReranking")


@cache
def instructions() -> Mapping[str, str]:
    """Return paper D's instructions by the name or the type of a task."""
    table = files("runnel.integrations").joinpath("mteb_instructions.tsv")
    lines = table.read_text(encoding="utf-8").splitlines()
    return dict(line.split("\t") for line in lines)


class MtebEncoder(AbsEncoder):
    r"""An embedder as mteb's encoder. Texts without a visible character get the zero vector, which
    is similar to none.

    Args:
        model: an embedder, or what `Embedder.load` takes.
        name: of the model in results; default: `model`, if that is a name or a folder.
        template: for models that follow instructions, such as "Instruction: {instruction}\nQuery: "
            of paper D; None: queries and documents have the model's own prompts, if it has some.
        max_tokens: cut texts; see `Embedder.encode`. The papers cut to 512.

    Raises:
        InputError: the template has no {instruction}.
        CheckpointError: the model does not exist or cannot embed.
    """

    def __init__(
        self,
        model: Embedder | str | Path,
        *,
        name: str = "",
        template: str | None = None,
        max_tokens: int | None = None,
    ) -> None:
        if template is not None and "{instruction}" not in template:
            raise InputError(f'the template is {template!r}; expected "{{instruction}}" in it')
        self.model = loaded(Embedder, model)
        self.instruction_template = template
        self.prompts_dict = dict(instructions())
        self.max_tokens = max_tokens
        settings = (template, max_tokens, *sorted(self.model.model.prompts.items()))
        self.mteb_model_meta = _meta(
            self.model.model,
            name or model,
            settings,
            embed_dim=self.model.dimension,
            similarity_fn_name=ScoringFunction.COSINE,
            use_instructions=template is not None,
            max_tokens=self.model.model.text_limit(max_tokens),
        )

    def encode(
        self,
        inputs: Batches,
        *,
        task_metadata: TaskMetadata,
        prompt_type: PromptType | None = None,
        **options: object,
    ) -> np.ndarray:
        """Return the vectors of all texts of the batches, float32 (n, d). The other arguments of
        the protocol have no effect.
        """
        texts = _texts(inputs)
        full = filled_places(self.model, texts)
        vectors = np.zeros((len(texts), self.model.dimension), np.float32)
        prompt = self.prompt_of(task_metadata, prompt_type)
        vectors[full] = self.model.encode(
            [texts[i] for i in full], prompt=prompt, max_tokens=self.max_tokens
        )
        return vectors

    def prompt_of(self, task_metadata: TaskMetadata, prompt_type: PromptType | None) -> str | None:
        """Return the prompt before queries or documents of a task: its name in the model, or its
        text; None: no prompt.
        """
        if self.instruction_template is None:
            name = None if prompt_type is None else prompt_type.value
            return name if name in self.model.model.prompts else None
        if prompt_type is PromptType.document and task_metadata.type in _QUERIES_ONLY:
            return None
        return self.get_task_instruction(task_metadata, PromptType.query)


class MtebReranker:
    """A reranker as mteb's cross-encoder: to rerank, or to retrieve from given candidates.
    Arguments as of `MtebEncoder`.
    """

    def __init__(
        self, model: Reranker | str | Path, *, name: str = "", max_tokens: int | None = None
    ) -> None:
        self.model = loaded(Reranker, model)
        self.max_tokens = max_tokens
        self.mteb_model_meta = _meta(
            self.model.model,
            name or model,
            (max_tokens,),
            model_type=["cross-encoder"],
            max_tokens=max_tokens,
        )

    def predict(
        self,
        inputs1: Batches,
        inputs2: Batches,
        **options: object,
    ) -> np.ndarray:
        """Return the scores of pairs, float32 (n,): of the queries in the first batches and the
        documents in the second.
        """
        pairs = list(zip(_texts(inputs1), _texts(inputs2), strict=True))
        return self.model.score_text_pairs(pairs, max_tokens=self.max_tokens)


class MtebIndex:
    """An index as mteb's search: words, meaning and reranking, as `Index.search`. Each corpus gets
    an index in a folder.

    Args:
        model: an embedder, or what `Embedder.load` takes.
        folder: of the indexes; interrupted indexing resumes there.
        options: of `Index.search`.
    """

    def __init__(
        self,
        model: Embedder | str | Path,
        folder: str | Path,
        *,
        name: str = "",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.model = loaded(Embedder, model)
        self.folder = Path(folder)
        self.options = dict(options or {})
        settings = (*sorted(self.options.items()), *sorted(self.model.model.prompts.items()))
        self.mteb_model_meta = _meta(
            self.model.model, name or model, settings, model_type=["hybrid"]
        )

    def index(
        self,
        corpus: Iterable[Mapping[str, str]],
        *,
        task_metadata: TaskMetadata,
        hf_split: str,
        hf_subset: str,
        **options: object,
    ) -> None:
        """Index the documents of a corpus that the index does not have yet."""
        self.folder.mkdir(parents=True, exist_ok=True)
        place = self._place(task_metadata, hf_split, hf_subset)
        with Index.open_or_create(place, self.model) as index:
            changes = index.add(
                Document(str(row["id"]), titled(row.get("title"), row["text"])) for row in corpus
            )
        if changes.failed:
            first = next(iter(changes.failed.values()))
            raise InputError(
                f"{place}: {len(changes.failed):,} documents cannot be indexed: {first}"
            )

    def search(
        self,
        queries: Iterable[Mapping[str, str]],
        *,
        task_metadata: TaskMetadata,
        hf_split: str,
        hf_subset: str,
        top_k: int,
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        **options: object,
    ) -> dict[str, dict[str, float]]:
        """Return query id -> document id -> score, of the `top_k` best documents."""
        if top_ranked is not None:
            raise InputError(
                "an index searches all documents, but this task has candidates; evaluate a reranker"
                " or an embedder"
            )
        with Index.open(self._place(task_metadata, hf_split, hf_subset), self.model) as index:
            return {
                str(row["id"]): {
                    hit.id: hit.score
                    for hit in index.search(row["text"], top_k, sentences=0, **self.options)
                }
                for row in queries
            }

    def _place(self, task_metadata: TaskMetadata, hf_split: str, hf_subset: str) -> Path:
        return self.folder / f"{task_metadata.name}-{hf_subset}-{hf_split}"


def _texts(batches: Batches) -> list[str]:
    return [text for batch in batches for text in batch["text"]]


def _meta(model: Model, name: object, settings: Sequence[object], **more: object) -> ModelMeta:
    """Return the facts of a model under which mteb files its results: other weights or settings
    have results of their own.
    """
    path = Path(type(model.backbone).__name__)
    if isinstance(name, str | Path):
        path = Path(name).resolve()
    # of a training run, RUN/model, the name of the run
    label = path.parent.name if path.name == "model" else path.name
    weights = list(model.with_torch().backbone.parameters())
    facts: dict[str, object] = {
        "name": f"runnel/{label}",
        "revision": digest(model.backbone.fingerprint(), repr(settings)),
        "framework": ["PyTorch"],
        "model_type": ["dense"],
        "n_parameters": sum(weight.numel() for weight in weights),
        "memory_usage_mb": sum(weight.nbytes for weight in weights) / 2**20,
    }
    return ModelMeta.create_empty(facts | more)
