"""What is stored of a model's work: any damage is an error with one remedy before a kernel, which
checks no bounds, sees it.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from helpers.tiny import tiny_encoder, tiny_model
from helpers.tiny_training import training_model
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from runnel import Embedder, Request, Reranker, SentenceRetriever, State
from runnel.errors import NumericalError, StateError
from runnel.models.memory import Memory, StatePrecision, pack, unpack
from runnel.models.pocket.sentence_vectors import SentenceVectors
from runnel.models.reading import read_documents
from runnel.models.recurrent.memory import DocumentState

TEXT = "The cat sat on the mat. A river runs to the sea; the dog sat. "
Read = Callable[[bytes], object]

# What may be done to a tensor; None if it would change nothing.
CHANGES: dict[str, Callable[[np.ndarray], np.ndarray | None]] = {
    "no dimensions": lambda t: np.zeros((), dtype=t.dtype) if t.ndim else None,
    "ones": lambda t: np.zeros([1] * t.ndim, dtype=t.dtype) if t.size != 1 else None,
    "flat": lambda t: t.flatten() if t.ndim > 1 else None,
    "shorter": lambda t: t[..., :-1] if t.ndim else None,
    "longer": lambda t: np.concatenate([t, t], -1) if t.ndim else None,
    "turned": lambda t: t.swapaxes(1, -1) if t.ndim > 2 and t.shape[1] != t.shape[-1] else None,
    "booleans": lambda t: np.zeros_like(t, dtype=bool),
    "nan": lambda t: np.full_like(t, np.nan) if t.dtype.kind == "f" else None,
}


@pytest.fixture(scope="module", params=["match", "rwkv7", "passages"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tiny")
    if request.param == "passages":
        return tiny_encoder(folder, sentence_layers=1)
    return (
        tiny_model(folder)
        if request.param == "match"
        else training_model(folder, request.param, papers_heads=True)
    )


def stored(model: Any, folder: Path) -> Iterator[tuple[bytes, str, Read]]:
    """Yield the bytes of each thing that is stored, what it belongs to, and what reads and uses the
    bytes.
    """
    embedder = Embedder(model)
    reranker = Reranker(model)
    path = folder / "stream"
    embedder.stream().feed(TEXT + "unfin").save(path)

    def go_on(data: bytes) -> object:
        path.write_bytes(data)
        return embedder.load_stream(path).feed(" and more text. The end.").embedding()

    yield path.read_bytes(), "stream", go_on
    kind = DocumentState if model.backbone.recurrent else SentenceVectors
    for precision in get_args(StatePrecision):
        document = reranker.remember([TEXT], dtype=precision)["0"]

        def rank(data: bytes) -> object:
            return reranker.score(
                "river", Memory(model.backbone, {"a": kind.from_bytes(data, TEXT)})
            )

        yield document.to_bytes(), TEXT, rank
    if not model.backbone.recurrent:
        (sentences,) = SentenceRetriever(model).remember([TEXT])
        yield (
            sentences.to_bytes(),
            TEXT,
            lambda data: SentenceRetriever(model).score("river", kind.from_bytes(data, TEXT)),
        )
        return
    (first,) = read_documents(embedder, [TEXT * 6], passage_tokens=30, save_from=20)
    assert first.saved is not None

    def resume(data: bytes) -> object:
        (again,) = read_documents(embedder, [TEXT * 7], [data], passage_tokens=30, save_from=20)
        if again.tokens_read == again.tokens:
            raise StateError("it was not used")
        return again.vector

    yield first.saved, "", resume


@pytest.fixture(scope="module")
def everything(
    model: Any, tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[bytes, str, Read]]:
    return list(stored(model, tmp_path_factory.mktemp("stored")))


def test_one_changed_bit_or_a_missing_end_is_an_error(
    everything: list[tuple[bytes, str, Read]],
) -> None:
    for data, _, read in everything:
        assert len(read(data))
        check_damage(data, read)
        for other in (
            b"",
            b"\0" * 100,
            save({"x": torch.zeros(1)}),
            pack({"x": torch.zeros(1)}, ""),
        ):
            with pytest.raises(StateError):
                read(other)


def check_damage(data: bytes, read: Read) -> None:
    header = 8 + int.from_bytes(data[:8], "little")

    @settings(max_examples=40, deadline=None)
    @given(st.one_of(st.integers(0, header), st.integers(0, len(data) - 1)), st.integers(0, 7))
    def check(place: int, bit: int) -> None:
        flipped = data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]
        for damaged in (flipped, data[:place]):
            with pytest.raises(StateError):
                read(damaged)

    check()


@pytest.mark.parametrize("change", [*CHANGES, "absent"])
def test_forged_shapes_give_numbers_or_an_error(
    model: Any, everything: list[tuple[bytes, str, Read]], change: str
) -> None:
    """The digest fits, so the numbers are whatever the forger wrote; the shapes of a state must not
    reach a kernel.
    """
    for data, about, read in everything:
        arrays = unpack(data, "it", None, about)
        for name in [
            name
            for name in arrays
            if name.startswith(("state.", "scale.", "sum", "tokens", "mean", "pending"))
        ]:
            new = None if change == "absent" else CHANGES[change](arrays[name])
            if new is None and change != "absent":
                continue
            forged = {key: tensor for key, tensor in arrays.items() if key != name} | (
                {} if new is None else {name: new}
            )
            # torch checks shapes too
            with suppress(StateError, NumericalError, RuntimeError, ValueError):
                read(pack(forged, model.backbone.fingerprint(), about))


def test_the_digest_covers_the_model_and_what_the_arrays_belong_to() -> None:
    arrays = {
        "a": np.arange(6)[::-2],
        "b": np.ones((2, 2), np.uint16),
        "c": b"text",
        "d": np.zeros((0, 4)),
        "e": np.array(1.5),
    }
    own = "ffffffffffffffffffff"
    other = "gggggggggggggggggggg"
    data = pack(arrays, own, "text")
    for fingerprint in (None, own):
        found = unpack(data, "it", fingerprint, "text")
        assert found.keys() == arrays.keys() and found["c"].tobytes() == b"text"
        assert all(
            np.array_equal(found[name], arrays[name]) and found[name].dtype == arrays[name].dtype
            for name in "abde"
        )
    forged = data.replace(own.encode(), other.encode())
    for stored, fingerprint, text, named in (
        (data, other, "text", "the file .*f{12}.*g{12}"),
        (data, own, "other text", "the file .*another text"),
        (forged, other, "text", "the file"),
    ):
        with pytest.raises(StateError, match=named):
            unpack(stored, "the file", fingerprint, text)


def test_the_engine_refuses_states_of_other_shapes(model: Any) -> None:
    state = model.backbone.new_state(1)
    for name, tensor in state.tensors.items():
        changed = [
            CHANGES[change](tensor.numpy())
            for change in ("ones", "flat", "shorter", "longer", "turned")
        ]
        for array in (array for array in changed if array is not None):
            other = State(
                state.tensors | {name: torch.from_numpy(np.ascontiguousarray(array))}, state.tokens
            )
            with pytest.raises(StateError):
                model.engine.run([Request(np.array([5, 6, 7]), state=other)])


@pytest.mark.parametrize(
    "damage", ["a bit flipped", "cut", "of another document", "of another model"]
)
def test_a_damaged_file_of_a_memory_is_reported_and_its_text_read_again(
    model: Any, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    documents = {"a": TEXT, "b": "A river runs to the sea.", "c": "dog"}
    reranker = Reranker(model)
    read = list[int]()
    other = Reranker(tiny_model(tmp_path / "tiny", seed=5)).remember(documents, tmp_path / "other")
    memory = reranker.remember(documents, tmp_path / "memory")
    expected = reranker.rank("river", memory)
    path = memory.documents["b"].path
    assert path is not None
    data = path.read_bytes()
    changed = {
        "a bit flipped": data[:-9] + bytes([data[-9] ^ 4]) + data[-8:],
        "cut": data[: len(data) // 2],
        "of another document": memory.documents["a"].path.read_bytes(),
        "of another model": other.documents["b"].path.read_bytes(),
    }
    path.write_bytes(changed[damage])
    with caplog.at_level(logging.WARNING, "runnel"):
        again = reranker.remember(
            documents, tmp_path / "memory", progress=lambda done, total: read.append(done)
        )
    assert str(path) in caplog.text and 0 < read[-1] < 20, "only that one is read"
    found = [(hit.id, hit.score) for hit in reranker.rank("river", again)]
    # read alone, not beside the others
    assert found == [(hit.id, pytest.approx(hit.score, abs=1e-5)) for hit in expected]
    assert path.read_bytes() != changed[damage]
    path.unlink()
    with pytest.raises(StateError, match=str(path)):
        reranker.rank("river", again)


def test_a_stream_gives_no_vector_that_is_not_a_number(model: Any) -> None:
    stream = Embedder(model).stream().feed(TEXT)
    stream._sum = np.full_like(stream._sum, np.nan)
    stream._last = torch.full((1, model.backbone.hidden_size), float("nan"))
    if model.backbone.recurrent:
        nan = {name: torch.full_like(t, float("nan")) for name, t in stream._state.tensors.items()}
        stream._state = State(nan, stream._state.tokens)
    with pytest.raises(NumericalError, match="NaN or infini"):
        stream.embedding()
