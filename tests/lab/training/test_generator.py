"""Training a recurrent model to reply: the loss of plain torch, at any packing and split, and what
it then writes.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.evidence_examples import arguments
from helpers.exams import follow
from helpers.files import write_rows
from helpers.stub_endpoint import serve
from helpers.tiny import byte_level_model
from helpers.tiny_training import BACKBONES, training_model
from torch import Tensor, nn

from runnel.errors import InputError
from runnel.lab.training import generator, recipes
from runnel.lab.training.decontaminate import Decontaminator
from runnel.lab.training.generator import (
    Completion,
    CompletionData,
    Exchange,
    GeneratorModule,
    GeneratorTrainer,
    make_completion,
    read_exchanges,
)
from runnel.lab.training.run import run_recipe
from runnel.models.model import Model
from runnel.models.recurrent.graph import Long
from runnel.models.recurrent.heads import LmHead
from runnel.models.recurrent.language_model import LanguageModel, load_generator
from runnel.models.recurrent.model import TorchModel
from runnel.text.dialogue import ask_answer, ask_copies, dialogue

pytestmark = pytest.mark.usefixtures("one_thread", "bare")
ROWS = [(40, 31), (9, 2), (33, 1), (3, 1)]  # tokens, and where the reply begins


def generating(folder: Path, family: str) -> Model:
    """A tiny model in fp64 with an LM head: tied in Mamba, with a soft cap in xLSTM."""
    model = training_model(folder, family, dtype=torch.float64)
    tied = family.startswith("mamba")
    head = LmHead(128, 32, tied=tied, soft_cap=3.0 if family == "xlstm" else None).double()
    if head.weight is not None:
        nn.init.normal_(head.weight, generator=torch.Generator().manual_seed(1))
    return TorchModel(model.backbone, model.tokenizer, nn.ModuleDict({"generate": head}), {})


def completions() -> list[Completion]:
    rng = np.random.default_rng(0)
    return [
        make_completion(rng.integers(4, 128, tokens).astype(np.int32), start)
        for tokens, start in ROWS
    ]


def plain_losses(model: Model, items: list[Completion]) -> Tensor:
    """The loss of each row as transformers computes it: all logits, labels of -100 for the prompt,
    and a shift by one.
    """
    losses = []
    head = model.heads["generate"]
    for item, (tokens, start) in zip(items, ROWS, strict=True):
        ids = torch.from_numpy(np.append(item.request.ids, item.targets[-1])).long()
        labels = torch.where(torch.arange(tokens) < start, -100, ids)
        hidden, _ = model.backbone(ids)
        weight = model.backbone.embeddings.weight if head.weight is None else head.weight
        logits = hidden @ weight.T
        if head.soft_cap is not None:
            logits = head.soft_cap * torch.tanh(logits / head.soft_cap)
        losses.append(F.cross_entropy(logits[:-1], labels[1:], ignore_index=-100, reduction="sum"))
    return torch.stack(losses)


def gradients(module: nn.Module, losses: Tensor) -> dict[str, Tensor]:
    module.zero_grad()
    losses.mean().backward()
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("family", BACKBONES)
def test_the_loss_and_its_gradients_are_those_of_plain_torch_at_any_split_and_packing(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generator, "_LOGITS", 4)
    model = generating(tmp_path, family)
    items = completions()
    module = GeneratorModule(model, Long())
    expected = plain_losses(model, items)
    wanted = gradients(module, expected)
    assert "backbone.embeddings.weight" in wanted and len(wanted) == len(list(module.parameters()))
    rows: list[int] = []
    forward = LmHead.forward
    monkeypatch.setattr(
        LmHead,
        "forward",
        lambda self, hidden, table: rows.append(len(hidden)) or forward(self, hidden, table),
    )
    for long in (Long(), Long(7, recompute=True)):
        module = GeneratorModule(model, long)
        rows.clear()
        together = module(items)[0]
        assert sum(rows) == sum(tokens - start for tokens, start in ROWS) and max(rows) == 4, (
            "no logits of prompts, few at a time"
        )
        for losses in (together, torch.cat([module([item])[0] for item in items])):
            torch.testing.assert_close(losses, expected, rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(gradients(module, losses), wanted, rtol=1e-7, atol=1e-9)


def saved(folder: Path) -> str:
    model = byte_level_model(folder, papers_heads=True)
    model.tokenizer.end_id = 0
    for layer in model.backbone.layers:
        # a long memory: the question is far before the answer
        nn.init.constant_(layer.mixer.A_log, -5.0)
    head = LmHead(model.tokenizer.vocab_size, 32, tied=True)
    TorchModel(model.backbone, model.tokenizer, nn.ModuleDict({"generate": head}), {}).save(
        folder / "start"
    )
    return str(folder / "start")


@pytest.fixture
def data(tmp_path: Path) -> CompletionData:
    exchanges = [
        Exchange(f"Question {n}:" + " the dog" * n, f"it is {n * n}.", f"e{n}") for n in range(9)
    ]
    return CompletionData.write(tmp_path / "data.arrow", load_generator(saved(tmp_path)), exchanges)


def one_step(
    folder: Path, data: CompletionData, **changes: Any
) -> tuple[float, float, dict[str, Tensor]]:
    model = load_generator(str(folder / "start"), "float32", "cpu")
    own = {key: changes.pop(key) for key in ("max_tokens", "max_rows", "long") if key in changes}
    settings = arguments(folder, max_steps=1, optim="sgd", **changes)
    trainer = GeneratorTrainer(model, settings, data, data, **{"max_tokens": 10_000} | own)
    measured = trainer.evaluate()["eval_loss"]
    trainer.train()
    (loss,) = (row["loss"] for row in trainer.state.log_history if "loss" in row)
    return measured, loss, {k: v.clone() for k, v in model.backbone.state_dict().items()}


def test_how_completions_are_put_into_batches_changes_nothing(
    tmp_path: Path, data: CompletionData
) -> None:
    """The loss is a mean over tokens, also where the batches of a step have different numbers of
    them.
    """
    measured, loss, weights = one_step(tmp_path, data)
    assert measured == pytest.approx(loss, rel=1e-5)
    for way in (
        {"max_tokens": 60, "gradient_accumulation_steps": 50, "long": Long(segment_tokens=13)},
        {
            "max_rows": 4,
            "gradient_accumulation_steps": 3,
            "long": Long(segment_tokens=13, recompute=True),
        },
    ):
        again = one_step(tmp_path, data, **way)
        assert again[:2] == pytest.approx((loss, loss), rel=1e-5)
        torch.testing.assert_close(again[2], weights, rtol=1e-4, atol=1e-6)


COLORS = {"north": "red", "south": "blue", "west": "green"}
DOCUMENT = "".join(f"The {side} mill is {color}.\n" for side, color in COLORS.items())


def mills() -> list[dict[str, Any]]:
    return [
        {"question": f"{side}?", "document": DOCUMENT, "answers": [color]}
        for side, color in COLORS.items()
    ]


def test_a_trained_model_answers_in_qa(run: Any, tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", mills())
    settings = (
        "train.max_steps=60 train.batch=3 train.group=3 train.learning_rate=2e-2"
        " train.min_learning_rate=2e-3"
    )
    changes = (
        f"model.name={saved(tmp_path)}",
        "train.precision=fp32",
        "long.recompute=false",
        *settings.split(),
    )
    summary = run_recipe(
        recipes.read("generator", changes=changes), tmp_path / "run", data=tmp_path / "rows.jsonl"
    )
    assert summary.last_loss < 0.05 < 5 < summary.first_loss
    with serve(follow) as judge:
        options = (
            "--llm",
            f"local:{summary.model}",
            "--judge",
            judge.url,
            "--judge-model",
            "stub",
            "--out",
            "out",
            "--json",
        )
        report = json.loads(run("lab", "qa", "whole", "rows.jsonl", *options).out)
    assert (report["all"]["correct"], report["all"]["questions"], report["notes"]) == (3, 3, {})
    found = (tmp_path / "out" / "rows.answers.jsonl").read_text().splitlines()
    assert [json.loads(line)["answer"] for line in found] == list(COLORS.values())


def exchanges(
    folder: Path, *rows: dict[str, Any], target: Any = "answer", exclude: tuple[Path, ...] = ()
) -> list[Exchange]:
    write_rows(folder / "rows.jsonl", rows)
    return list(read_exchanges(folder / "rows.jsonl", target, Decontaminator(exclude)))


def test_the_prompt_is_that_of_qa_and_the_reply_what_it_reads(tmp_path: Path) -> None:
    first = {"query": " Where? ", "document": f" {DOCUMENT}", "answer": " In the north. ", "id": 7}
    second = {
        "question": "Where?",
        "document": DOCUMENT,
        "answers": ["here", "there"],
        "answer_type": "paragraph",
    }
    one, other = exchanges(tmp_path, first, second)
    assert one == Exchange(
        dialogue(ask_answer("Where?", DOCUMENT, "sentence", excerpts=False)),
        "ANSWER: In the north.",
        "7",
    )
    assert other.prompt == dialogue(ask_answer("Where?", DOCUMENT, "paragraph", excerpts=False))
    assert other.reply == "ANSWER: here" and other.id.endswith("rows.jsonl, line 2")
    evidence = {"question": "Where?", "document": DOCUMENT, "evidence": [[4, 9], [60, 66]]}
    (copied,) = exchanges(tmp_path, evidence, target="evidence")
    assert copied.prompt == dialogue(ask_copies("Where?", DOCUMENT))
    assert copied.reply == "The north mill is red.\nThe west mill is green."


def test_examples_that_overlap_with_a_test_set_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "test.txt").write_text(DOCUMENT)
    rows = [row | {"evidence": [[0, 9]]} for row in mills()]
    rows += [
        {
            "question": "a",
            "document": "Nobody has ever seen this sentence.",
            "answer": "b",
            "evidence": [[0, 6]],
        }
    ]
    for target in ("answer", "evidence"):
        assert len(exchanges(tmp_path, *rows, target=target, exclude=(tmp_path / "test.txt",))) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"answer": " "},
        {"answer": None},
        {"answers": []},
        {"document": ""},
        {"choices": ["a", "b"]},
        {"answer_type": "word"},
    ],
    ids=str,
)
def test_rows_that_cannot_be_learned_are_refused_by_line(
    change: dict[str, Any], tmp_path: Path
) -> None:
    row = {"question": "Where?", "document": DOCUMENT, "answer": "here"}
    with pytest.raises(InputError, match=r"rows\.jsonl, line 2: "):
        exchanges(tmp_path, row, row | change)


def test_a_saved_head_is_loaded_as_it_was(tmp_path: Path) -> None:
    model = byte_level_model(tmp_path, papers_heads=True)
    head = LmHead(model.tokenizer.vocab_size, 32, soft_cap=30.0)
    TorchModel(model.backbone, model.tokenizer, nn.ModuleDict({"generate": head}), {}).save(
        tmp_path / "own"
    )
    again, narrow = (
        LanguageModel.load(tmp_path / "own", dtype=dtype, device="cpu").head
        for dtype in ("float32", "bfloat16")
    )
    assert (
        again.soft_cap == 30.0
        and torch.equal(again.weight, head.weight)
        and narrow.weight.dtype == torch.bfloat16
    )
