"""Arrays in a file or in a column of a database: safetensors, with the fingerprint of the model that made them and one digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from runnel.errors import StateError, describe


def pack(arrays: Mapping[str, np.ndarray | bytes], fingerprint: str, about: str = "") -> bytes:
    """Return arrays as bytes for `unpack`. `about`: what they belong to, such as a text; it is not stored."""
    held = {
        name: np.frombuffer(array, dtype=np.uint8) if isinstance(array, bytes) else np.asarray(array, order="C")
        for name, array in arrays.items()
    }
    return save(held, {"runnel": f"{_digest(held, fingerprint, about)} {fingerprint}"})


def unpack(data: bytes, place: str, fingerprint: str | None, about: str | None = "") -> dict[str, np.ndarray]:
    """Return the arrays that `pack` stored, by name. A bytes object becomes a uint8 array.

    Args:
        place: what the data is and where it comes from, for messages.
        fingerprint: of the model that made them; None: of any.
        about: as for `pack`; None: the digest has been compared before.

    Raises:
        StateError: the data is damaged, or belongs to another model or to something else.
    """
    with damage_in_state(place):
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
        arrays, (digest, _, model) = load(data), header["runnel"].partition(" ")
    problem = None
    if about is not None and digest != _digest(arrays, model, about):
        problem = "is damaged, or belongs to another text"
    elif fingerprint not in (None, model):
        problem = f"was made by another model (fingerprint {model[:12]}, this model has {fingerprint:.12}); use that one"
    if problem:
        raise StateError(f"{place} {problem}, or read the text again")
    return arrays


@contextmanager
def damage_in_state(place: str) -> Iterator[None]:
    """Turn the error of reading what a model keeps of a text into a StateError; `place`: as for `unpack`."""
    try:
        yield
    except StateError:
        raise
    except (SafetensorError, OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        what = describe(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        raise StateError(
            f"{place} is damaged, or belongs to another kind of model ({what}); read the text again with this model"
        ) from error


def _digest(arrays: Mapping[str, np.ndarray], model: str, about: str) -> str:
    digest = hashlib.blake2b(f"{model}\n{about}".encode("utf-8", "surrogatepass"), digest_size=16)
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {list(array.shape)}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
