"""Make the Trainer for each job.

In: a model, a recipe and the data of a run. Out: a Trainer, whose `train` does the steps. A step
goes through `training_step` of `progress.Watched`, which counts and checks, to the loss:

embed       SentenceTransformerTrainer, InfoNCE over the documents of the batch (its multiple
            negatives ranking loss)
rerank      CrossEncoderTrainer, softmax cross-entropy over one answering document and its negatives
            (its ListNet loss)
sentences   SentenceTrainer; for a head over stored vectors VectorTrainer, for the layers of an
            encoder that make these vectors LayerTrainer (`vectors`)
generate    GeneratorTrainer
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, DatasetDict
from sentence_transformers import (
    CrossEncoderTrainer,
    CrossEncoderTrainingArguments,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.base.sampler import DefaultBatchSampler, NoDuplicatesBatchSampler
from sentence_transformers.cross_encoder.losses import ListNetLoss
from sentence_transformers.sentence_transformer.losses import (
    CachedMultipleNegativesRankingLoss,
    MultipleNegativesRankingLoss,
)
from torch.nn.utils.rnn import pad_sequence
from transformers import Trainer, TrainingArguments

from runnel.errors import InputError
from runnel.integrations.sentence_transformers import cross_encoder, sentence_transformer
from runnel.jobs.progress import notify
from runnel.lab.training.document_trainer import DocumentTrainer, SentenceTrainer
from runnel.lab.training.generator import GeneratorTrainer
from runnel.lab.training.progress import Watched
from runnel.lab.training.recipes import DataTable, Recipe
from runnel.lab.training.run_data import RunData
from runnel.lab.training.vectors import LayerTrainer, VectorTrainer
from runnel.models.embedder import Embedder
from runnel.models.model import Model
from runnel.models.pocket.heads import VectorScore
from runnel.models.recurrent.adapters import load_adapter
from runnel.models.recurrent.graph import Long

_SAVES = 10  # the least number of checkpoints written in a run


class _Saving(Trainer):
    """A Trainer of sentence-transformers of which one process saves (the library saves in all, to
    the same files), and that can load checkpoints of adapters.
    """

    def _save(
        self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None
    ) -> None:
        if self.args.should_save:
            super()._save(output_dir, state_dict)

    def _load_from_checkpoint(
        self, resume_from_checkpoint: str, model: torch.nn.Module | None = None
    ) -> None:
        # the first module of the library's model is runnel's wrapper
        inside: Model = self.model[0].model  # type: ignore[index]
        if inside.backbone.adapted:
            load_adapter(inside, resume_from_checkpoint)
        else:
            super()._load_from_checkpoint(resume_from_checkpoint)


class _Embedders(Watched, _Saving, SentenceTransformerTrainer):
    pass


class _Rerankers(Watched, _Saving, CrossEncoderTrainer):
    pass


def make_trainer(
    model: Model, recipe: Recipe, data: RunData, folder: Path
) -> _Embedders | _Rerankers | DocumentTrainer:
    """Make the Trainer for a recipe's job."""
    if recipe.job == "embed":
        return _embedder_trainer(model, recipe, data, folder)
    if recipe.job == "rerank":
        return _reranker_trainer(model, recipe, data, folder)
    top_k = recipe.evaluation.top_k
    bf16 = recipe.train.precision == "bf16"
    sizes = sizes_of(recipe)
    shared = arguments(recipe, folder) | sizes
    data_parts = (data.train, data.held_out)  # `run` calibrates with `data.aside` after training
    if recipe.model.layers:  # its module has its own autocast
        return LayerTrainer(
            model, TrainingArguments(**shared), *data_parts, bf16=bf16, top_k=top_k or (10,)
        )
    if isinstance(model.head(recipe.job), VectorScore):
        return VectorTrainer(
            model.heads[recipe.job], TrainingArguments(**shared), *data_parts, top_k=top_k or (10,)
        )
    args = TrainingArguments(**shared, bf16=bf16)
    limits = {
        "max_tokens": recipe.train.group_tokens,
        "max_rows": sizes["per_device_train_batch_size"],
        "long": long(recipe),
    }
    if recipe.job == "generate":
        return GeneratorTrainer(model, args, *data_parts, **limits)
    limits["as_code"] = recipe.train.normalization == "code"
    return SentenceTrainer(model, args, *data_parts, top_k=top_k or (1, 5), **limits)


def _embedder_trainer(model: Model, recipe: Recipe, data: RunData, folder: Path) -> _Embedders:
    """Make a Trainer for rows of `tables`. Each batch, over all devices, is from one data set,
    drawn by its size.
    """
    table = recipe.train
    rows: DatasetDict = data.train
    world = _processes()
    _expect_multiple(table.batch, world)
    skipped = ", ".join(
        f"{len(part) % table.batch:,} of {len(part):,} ({name})"
        for name, part in rows.items()
        if len(part) % table.batch
    )
    if world > 1 and skipped:
        notify(f"several processes share only full batches; rows skipped in each epoch: {skipped}")
    args = SentenceTransformerTrainingArguments(
        **arguments(recipe, folder),
        per_device_train_batch_size=table.batch,  # for all devices together: each takes a part
        per_device_eval_batch_size=table.batch,
        accelerator_config={"split_batches": True},
        batch_sampler=_without_duplicates,
        multi_dataset_batch_sampler="proportional",
    )
    transformer = sentence_transformer(model, long=long(recipe))
    # The library copies training texts into the card of every checkpoint.
    transformer.model_card_data.set_widget_examples = (  # type: ignore[method-assign]
        lambda rows: None  # type: ignore[assignment]
    )
    loss: torch.nn.Module
    if table.group is not None and table.group < table.batch // world:
        loss = CachedMultipleNegativesRankingLoss(
            transformer,
            scale=1 / table.temperature,
            mini_batch_size=table.group,
            gather_across_devices=world > 1,
        )
    else:
        loss = MultipleNegativesRankingLoss(
            transformer, scale=1 / table.temperature, gather_across_devices=world > 1
        )
    return _Embedders(
        transformer,
        args,
        rows,
        data.held_out,
        loss=loss,
        data_collator=EmbedderBatches(model, recipe.data),
    )


def _reranker_trainer(model: Model, recipe: Recipe, data: RunData, folder: Path) -> _Rerankers:
    """Make a Trainer for rows of `tables`. Only documents are cut."""
    args = CrossEncoderTrainingArguments(
        **arguments(recipe, folder),
        **sizes_of(recipe),
        multi_dataset_batch_sampler="proportional",
    )
    encoder = cross_encoder(model, long=long(recipe), max_seq_length=recipe.data.max_tokens)
    trainer = _Rerankers(
        encoder,
        args,
        data.train,
        data.held_out,
        # the whole batch at once: `group` already limits it
        loss=ListNetLoss(encoder, mini_batch_size=-1),
    )
    trainer.data_collator = RowNames(trainer.data_collator)  # type: ignore[assignment]
    read_pairs = encoder.preprocess

    def count_tokens(*inputs: Any, **options: Any) -> dict[str, Any]:
        features: dict[str, Any] = read_pairs(*inputs, **options)
        if encoder.training:
            trainer.watch.tokens += sum(len(pair.request.ids) for pair in features.get("pairs", ()))
        return features

    encoder.preprocess = count_tokens  # type: ignore[method-assign]  # called by the loss
    return trainer


_SCHEDULES = {
    "linear": "linear",
    "cosine": "cosine_with_min_lr",
    "constant": "constant_with_warmup",
}


def arguments(recipe: Recipe, folder: Path) -> dict[str, Any]:
    """Return the arguments that all kinds of TrainingArguments share."""
    table = recipe.train
    return {
        "output_dir": str(folder / "checkpoints"),
        "learning_rate": table.learning_rate,
        "num_train_epochs": table.epochs,
        "max_steps": table.max_steps or -1,
        "warmup_steps": table.warmup if table.warmup < 1 else int(table.warmup),
        "lr_scheduler_type": _SCHEDULES[table.schedule],
        "lr_scheduler_kwargs": (
            {"min_lr": table.min_learning_rate} if table.schedule == "cosine" else {}
        ),
        "adam_beta1": table.betas[0],
        "adam_beta2": table.betas[1],
        "adam_epsilon": table.eps,
        "weight_decay": table.weight_decay,
        "max_grad_norm": table.max_grad_norm,
        "seed": table.seed,
        "logging_steps": 0.005,  # share of the run
        "logging_first_step": True,
        "logging_nan_inf_filter": False,  # NaN and infinity end the run
        "save_steps": 1 / max(_SAVES, table.checkpoints),
        "save_total_limit": table.checkpoints,
        "report_to": [],  # `run` adds TensorBoard's
        "disable_tqdm": True,  # `Recorder` has a bar
        "use_cpu": not torch.cuda.is_available(),
        "dataloader_pin_memory": torch.cuda.is_available(),
    }


def long(recipe: Recipe) -> Long:
    """Return a recipe's settings for reading long texts."""
    return Long(
        recipe.long.segment_tokens, recipe.long.recompute, bf16=recipe.train.precision == "bf16"
    )


def _processes() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


class EmbedderBatches:
    """A collator of rows into a batch: `COLUMN_input_ids` and `COLUMN_attention_mask`, padded, and
    "rows", their names.
    """

    valid_label_columns = ("label",)  # read by the Trainer; there are no labels

    def __init__(self, model: Model, table: DataTable) -> None:
        self._embedder = Embedder(model)
        self._table = table
        self.truncated = 0  # texts cut so far

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        batch: dict[str, Any] = {"rows": [row["row"] for row in rows]}
        if "dataset_name" in rows[0]:
            batch["dataset_name"] = rows[0]["dataset_name"]
        for column in [name for name in rows[0] if name not in ("row", "dataset_name")]:
            most = self._table.max_document_tokens
            if column == "query":
                most = self._table.max_query_tokens
            encoded = list(self._embedder.render([row[column] for row in rows], max_tokens=most))
            self.truncated += self._embedder.truncated
            ids = [torch.from_numpy(text).long() for text in encoded]
            mask = [torch.ones_like(text) for text in ids]
            batch[f"{column}_input_ids"] = pad_sequence(ids, batch_first=True)
            batch[f"{column}_attention_mask"] = pad_sequence(mask, batch_first=True)
        return batch


class RowNames:
    """A wrapper that passes the names of rows around a data collator, as "rows"."""

    def __init__(self, collator: Any) -> None:
        self._collator = collator
        self.valid_label_columns = collator.valid_label_columns

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        names = [row["row"] for row in rows]
        columns = [{k: v for k, v in row.items() if k != "row"} for row in rows]
        return {**self._collator(columns), "rows": names}


def _without_duplicates(rows: Dataset, **options: Any) -> DefaultBatchSampler:
    """Return a sampler without repeated texts in a batch, where they would be their own negatives;
    "row" does not count.
    """
    return NoDuplicatesBatchSampler(rows.remove_columns("row"), **options)


def sizes_of(recipe: Recipe) -> dict[str, Any]:
    """Return the arguments for the queries of one forward pass on one device, and for the passes of
    a step.
    """
    batch = recipe.train.batch
    world = _processes()
    _expect_multiple(batch, world)
    group = min(recipe.train.group or batch, batch // world)
    _expect_multiple(batch, world * group)
    return {
        "per_device_train_batch_size": group,
        "per_device_eval_batch_size": group,
        "gradient_accumulation_steps": batch // (world * group),
    }


def _expect_multiple(batch: int, parts: int) -> None:
    if batch % parts:
        raise InputError(
            f"train.batch = {batch}; expected a multiple of {parts} (processes times train.group):"
            " start fewer processes, or choose a multiple"
        )
