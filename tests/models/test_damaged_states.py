"""Files of states that are damaged or hostile: every one is refused before a kernel, which checks no bounds, sees it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.tiny import tiny_encoder, tiny_model
from helpers.tiny_training import training_model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load, load_file, save, save_file
from torch import Tensor

from runnel import Embedder, Request, Reranker, SentenceRetriever, State
from runnel.errors import NumericalError, StateError
from runnel.models.memory import Memory
from runnel.models.memory_block import seal
from runnel.models.passages import read_documents
from runnel.models.sentence_vectors import SentenceVectors

DOCUMENTS = ["The cat sat on the mat. " * 30, "A river runs to the sea.", "dog"]
TEXT = "The cat sat on the mat. A river runs to the sea; the dog sat. "
NAN, INFINITY = float("nan"), float("inf")

# What may be done to a tensor; None where it leaves this one as it is.
CHANGES: dict[str, Callable[[Tensor], Tensor | None]] = {
    "absent": lambda t: torch.empty(0),  # the test leaves it out
    "no dimensions": lambda t: torch.zeros((), dtype=t.dtype),
    "ones": lambda t: torch.zeros([1] * t.ndim, dtype=t.dtype) if t.numel() != 1 else None,
    "flat": lambda t: t.flatten() if t.ndim > 1 else t[None],
    "shorter": lambda t: t[..., :-1].contiguous(),
    "longer": lambda t: torch.cat([t, t], -1),
    "more rows": lambda t: torch.cat([t, t]),
    "no rows": lambda t: t[:0],
    "turned": lambda t: t.transpose(1, -1).contiguous() if t.ndim > 2 and t.shape[1] != t.shape[-1] else None,
    "booleans": lambda t: torch.zeros_like(t, dtype=torch.bool) if t.dtype != torch.bool else None,
    "integers": lambda t: t.to(torch.int16),
    "complex": lambda t: t.to(torch.complex64),
    "float8": lambda t: t.float().to(torch.float8_e4m3fn),
}
NUMBERS: dict[str, Callable[[Tensor], Tensor | None]] = {
    "nan": lambda t: torch.full_like(t, NAN) if t.is_floating_point() else None,
    "infinity": lambda t: torch.full_like(t, -INFINITY) if t.is_floating_point() else None,
}


def changed(tensors: dict[str, Tensor], name: str, change: str) -> dict[str, Tensor] | None:
    """The tensors with one of them changed, or None if the change would do nothing to it."""
    if change == "absent":
        return {key: tensor for key, tensor in tensors.items() if key != name}
    new = (CHANGES | NUMBERS)[change](tensors[name])
    return None if new is None else {**tensors, name: new}


@pytest.fixture(scope="module", params=["match", "rwkv7"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tiny")
    return tiny_model(folder) if request.param == "match" else training_model(folder, request.param, papers_heads=True)


# ---- streams -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def stream_file(model: Any, tmp_path: Path) -> Path:
    Embedder(model).stream().feed(TEXT + "unfin").save(tmp_path / "stream")
    return tmp_path / "stream"


def rewrite(path: Path, tensors: dict[str, Tensor], **metadata: str | None) -> None:
    with safe_open(path, framework="pt") as file:
        old = file.metadata()
    kept = {key: value for key, value in (old | metadata).items() if value is not None}
    save_file(tensors, path.with_suffix(".new"), metadata=kept)
    path.with_suffix(".new").replace(path)


@pytest.mark.parametrize("change", [*CHANGES, *NUMBERS])
def test_a_stream_with_a_changed_tensor_is_refused(model: Any, stream_file: Path, change: str) -> None:
    tensors = load_file(stream_file)
    for name in tensors:
        damaged = changed(tensors, name, change)
        if damaged is None or (name == "extra.pending" and change == "flat"):  # in any shape it is the same text
            continue
        rewrite(stream_file, damaged)
        with pytest.raises(StateError):
            Embedder(model).load_stream(stream_file)


PENDING = [b"", b"{}", b"[]", b"\xff", b'["a"]', b'[1, "", 0, null]', b'["a", "", -1, null]', b"[" * 10**5]
PENDING += [b'["a", "", 1e300, null]', b'["a", "", 99999999999999999999, null]', b'["a", "", true, null]']
PENDING += [b'["\\ud800", "", 0, null]', b'["a", "b", 3, null]', b'["a", "", 0, "x"]', b'["a", "bc", 3, null]']


def test_other_damage_to_a_stream_is_refused(model: Any, stream_file: Path) -> None:
    tensors, whole = load_file(stream_file), stream_file.read_bytes()
    for pending in PENDING:
        rewrite(stream_file, {**tensors, "extra.pending": torch.tensor(list(pending), dtype=torch.uint8)})
        with pytest.raises(StateError, match="the pending text"):
            Embedder(model).load_stream(stream_file)
    for damaged in (
        {**tensors, "tokens": torch.tensor([-1])},
        {**tensors, "stray": torch.zeros(1)},
        {**tensors, "extra.more": torch.zeros(1)},
        {**tensors, "extra.total": torch.tensor([-1.0], dtype=torch.float64)},
        {},
    ):
        rewrite(stream_file, damaged)
        with pytest.raises(StateError):
            Embedder(model).load_stream(stream_file)
    for key in ("fingerprint", "format"):
        stream_file.write_bytes(whole)
        rewrite(stream_file, tensors, **{key: None})
        with pytest.raises(StateError):
            Embedder(model).load_stream(stream_file)
    with pytest.raises(StateError):
        Embedder(model).load_stream(stream_file.parent)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.floats(0, 1), place=st.integers(0, 600), byte=st.integers(0, 255))
def test_a_stream_cut_short_or_with_a_changed_header_never_crashes(
    model: Any, stream_file: Path, cut: float, place: int, byte: int
) -> None:
    whole = stream_file.read_bytes()
    try:
        stream_file.write_bytes(whole[: int(cut * (len(whole) - 1))])
        with pytest.raises(StateError):
            Embedder(model).load_stream(stream_file)
        stream_file.write_bytes(whole[:place] + bytes([byte]) + whole[place + 1 :])
        try:
            vector = Embedder(model).load_stream(stream_file).feed(" and more text. The end.").embedding()
        except (StateError, NumericalError):  # a header that names another place of the numbers gives other numbers
            return
        assert np.isfinite(vector).all()
    finally:
        stream_file.write_bytes(whole)


def test_a_stream_gives_no_vector_that_is_not_a_number(model: Any) -> None:
    stream = Embedder(model).stream().feed(TEXT)
    stream._state = State({name: torch.full_like(t, NAN) for name, t in stream._state.tensors.items()}, stream._state.tokens)
    with pytest.raises(NumericalError, match="the stream's vector is NaN or infinite"):
        stream.embedding()


# ---- states from Python ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [name for name in CHANGES if name not in ("more rows", "no rows")])
def test_states_of_other_shapes_are_refused_by_backbone_and_engine(model: Any, change: str) -> None:
    state, ids = model.backbone.new_state(1), np.array([5, 6, 7])
    for name in state.tensors:
        tensors = changed(state.tensors, name, change)
        if tensors is None:
            continue
        with pytest.raises(StateError):
            model.backbone(torch.from_numpy(ids), state=State(tensors, state.tokens))
        with pytest.raises(StateError):
            model.engine.run([Request(ids, state=State(tensors, state.tokens))])


# ---- sealed by a digest: blocks and pieces of a memory, earlier readings, sentence vectors ----------------------------------


def sealed(model: Any, folder: Path) -> Iterator[tuple[bytes, Callable[[bytes], object]]]:
    """What each container holds, and what reads it; a reading that is not used raises too."""
    reranker, embedder, fingerprint = Reranker(model), Embedder(model), model.backbone.fingerprint()
    for precision in ("fp32", "bf16", "int8"):
        reranker.remember(DOCUMENTS, folder / precision, precision)
        path = folder / precision / "block-000000.safetensors"

        def rank(data: bytes, path: Path = path) -> None:
            path.write_bytes(data)
            reranker.rank("river", Memory.open(path.parent, fingerprint=fingerprint))

        yield path.read_bytes(), rank

    (piece,) = reranker.remember(DOCUMENTS[:1]).pieces()
    yield piece, lambda data: reranker.score("river", Memory.of_pieces("int8", fingerprint, {"a": data}))
    (first,) = read_documents(embedder, [TEXT * 6], passage_tokens=30, save_from=20)
    (whole,) = read_documents(embedder, [TEXT * 7], passage_tokens=30)
    assert first.saved is not None

    def resume(data: bytes) -> None:
        (again,) = read_documents(embedder, [TEXT * 7], [data], passage_tokens=30, save_from=20)
        np.testing.assert_allclose(again.vector, whole.vector, atol=2e-5)
        if again.tokens_read == again.tokens:
            raise StateError("it was not used")

    yield first.saved, resume
    retriever = SentenceRetriever(tiny_encoder(folder))
    (sentences,) = retriever.remember([TEXT])
    yield sentences.to_bytes(), lambda data: retriever.score("river", SentenceVectors.from_bytes(data, TEXT, 32))


def check_damage(data: bytes, read: Callable[[bytes], object]) -> None:
    read(data)

    @settings(max_examples=40, deadline=None)
    @given(st.integers(0, len(data) - 1), st.integers(0, 7))
    def check(place: int, bit: int) -> None:
        flipped = data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]
        for damaged in (flipped, data[:place]):
            with pytest.raises(StateError):
                read(damaged)

    check()


def test_one_changed_bit_or_a_missing_end_of_what_is_sealed_is_told(model: Any, tmp_path: Path) -> None:
    for data, read in sealed(model, tmp_path):
        check_damage(data, read)


@pytest.mark.filterwarnings("ignore:Casting complex")
@pytest.mark.parametrize("change", CHANGES)
def test_a_forged_block_gives_scores_or_one_error(model: Any, change: str) -> None:
    """Its digest fits, so its numbers are whose who wrote it; its shapes must not reach a kernel."""
    (piece,) = Reranker(model).remember(DOCUMENTS[:1]).pieces()
    tensors = load(piece)
    tensors.pop("digest")
    for name in tensors:
        damaged = changed(tensors, name, change)
        if damaged is not None:
            forged = Memory.of_pieces("int8", model.backbone.fingerprint(), {"a": save(seal(damaged))})
            with suppress(StateError, NumericalError):
                assert Reranker(model).score("river", forged).shape == (1,)


BLOCKS: dict[str, Callable[[Path, Path, bytes], object]] = {
    "scaled": lambda path, other, data: save_file({k: t * 1000 if "scale" in k else t for k, t in load_file(path).items()}, path),
    "a bit flipped": lambda path, other, data: path.write_bytes(data[:-9] + bytes([data[-9] ^ 4]) + data[-8:]),
    "cut": lambda path, other, data: path.write_bytes(data[: len(data) // 2]),
    "gone": lambda path, other, data: path.unlink(),
    "of other documents": lambda path, other, data: shutil.copy(path.with_name("block-000000.safetensors"), path),
    "of another model": lambda path, other, data: shutil.copy(other / path.name, path),
}


@pytest.mark.parametrize("damage", BLOCKS)
def test_a_changed_or_swapped_block_is_told_and_read_again_where_its_documents_are_given(
    model: Any, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runnel.models.reranker.BLOCK", 1)
    reranker, other = Reranker(model), Reranker(tiny_model(tmp_path / "tiny", seed=5))
    other.remember(DOCUMENTS, tmp_path / "other")
    folder, read = tmp_path / "memory", list[int]()
    expected = reranker.rank("river", reranker.remember(DOCUMENTS, folder))
    path = folder / "block-000001.safetensors"
    BLOCKS[damage](path, tmp_path / "other", path.read_bytes())
    with pytest.raises(StateError, match=re.escape(str(path))):
        reranker.rank("river", Memory.open(folder, fingerprint=model.backbone.fingerprint()))
    again = reranker.remember(DOCUMENTS, folder, progress=read.append)
    assert str(path) in caplog.text and 0 < sum(read) < len(DOCUMENTS[0].split()), "only that one is read"
    for memory in (again, Memory.open(folder, fingerprint=model.backbone.fingerprint())):
        assert reranker.rank("river", memory) == expected
    caplog.clear()
    read.clear()
    reranker.remember(DOCUMENTS, folder, progress=read.append)
    assert not read and not caplog.records


@pytest.mark.parametrize("key", ["format", "precision", "fingerprint", "names", "texts", "digests"])
def test_a_memory_with_a_changed_index_is_refused(tmp_path: Path, key: str) -> None:
    model = tiny_model(tmp_path / "tiny")
    Reranker(model).remember(DOCUMENTS, tmp_path)
    path = tmp_path / "memory.json"
    index = json.loads(path.read_text())
    values = [None, 1, "x", [], {}, [1], ["x"], [[1]], [["a"]], [["a", "b", "c", "d"]]]
    others = [{name: value for name, value in index.items() if name != key}, *({**index, key: value} for value in values)]
    for text in (*map(json.dumps, others), "", "[]", "1", "null", "[" * 10**5, '{"format"', "\x00"):
        path.write_text(text)
        with pytest.raises(StateError):
            Memory.open(tmp_path, fingerprint=model.backbone.fingerprint())
        with pytest.raises(StateError):
            Reranker(model).remember(DOCUMENTS, tmp_path)
