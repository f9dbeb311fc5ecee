"""What every backbone declares: its shape, and in what blocks it reads a text.

T  tokens of a text
"""

import hashlib
import inspect
import math
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Self

import numpy as np

from runnel.config import arguments
from runnel.errors import InputError, StateError


@dataclass(frozen=True)
class BackboneConfig:
    """The shape of a backbone. Sub-classes are frozen dataclasses; `unchecked` names fields that
    any number may be in.
    """

    unchecked: ClassVar[tuple[str, ...]] = ()
    vocab_size: int  # rows of the embedding table
    hidden_size: int  # width of the hidden vectors
    num_layers: int

    def __post_init__(self) -> None:
        """Raise InputError unless sizes (whole numbers) are at least 1 and scales (the others)
        positive and finite.
        """
        for field in fields(self):
            value = getattr(self, field.name)
            # The annotation is a string in files that delay annotations, and a type in others.
            kind = inspect.formatannotation(field.type).strip("'").removesuffix(" | None")
            if value is not None and field.name not in self.unchecked:
                self.expect(kind != "int" or value >= 1, field.name, rule="at least 1")
                self.expect(
                    kind != "float" or 0 < value < math.inf,
                    field.name,
                    rule="a positive, finite number",
                )

    def expect(self, holds: bool, *names: str, rule: str) -> None:
        """Raise InputError with the values of these names unless the rule about them holds."""
        if not holds:
            values = " and ".join(f"{name} {getattr(self, name)}" for name in names)
            raise InputError(f"{values}: expected {rule}")

    def expect_multiple(self, name: str, of: str) -> None:
        """Raise InputError unless the value of `name` is a multiple of that of `of`."""
        rest = getattr(self, name) % getattr(self, of)
        self.expect(rest == 0, name, of, rule="a multiple of the latter")

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any], where: str = "the config") -> Self:
        """Return the inverse of `to_dict`. Raises CheckpointError on unknown or missing names and
        values of another type.
        """
        return cls(**arguments(cls, values, where))


class Blocks:
    """The sizes of a backbone, and in what blocks it reads a text."""

    title: ClassVar[str]  # the architecture's usual name, for messages
    without_torch: ClassVar[bool] = False  # it reads arrays, and gives arrays
    # tokens that are read together: 1 in a recurrence, a passage's in an encoder; None: the whole
    # text
    block: int | None = 1
    max_tokens: int | None = None  # the longest block it can read; None: any
    own_sentences: bool = False  # whether layers of its own read sentences: `Encoder.step_forms`
    config: BackboneConfig
    vocab_size: int
    hidden_size: int
    num_layers: int

    def set_config(self, config: Any) -> None:
        """Take the sizes of a config."""
        self.config = config
        self.vocab_size = config.vocab_size
        self.hidden_size = config.hidden_size
        self.num_layers = config.num_layers

    @property
    def recurrent(self) -> bool:
        """Whether it carries a state from token to token. Other backbones read each block whole,
        and have no state.
        """
        return self.block == 1

    @property
    def passage_tokens(self) -> int | None:
        """The tokens of the passages, each read whole, of long texts; see `text.sentences.lay_out`.
        None: it reads otherwise.
        """
        return None if self.block == 1 else self.block

    @property
    def longest_text(self) -> int | None:
        """The tokens, special ones included, of the longest text it can read; None: any."""
        return self.max_tokens if self.block is None else None

    def block_ends(self, ids: np.ndarray) -> np.ndarray | None:
        """Return the ends of a text's blocks in ascending order, the last one at len(ids), or None
        if any token may be one.

        The blocks depend on ids (T,) alone, so a text that is read in any steps of whole blocks
        gives the same hidden vectors.
        """
        return None if self.recurrent else np.array([len(ids)])

    def check_whole(self, cu_seqlens: Any, *, continues: bool) -> None:
        """Raise for what a backbone without a state cannot do: continue from a state, or read a
        sequence that is too long.
        """
        if continues:
            raise StateError(
                f"{self.title} reads a text only whole: it has no state to start from or to keep,"
                " so no streams, no remembered documents and no segments. Give encode() or score()"
                " the whole text each time, or use a recurrent model"
            )
        longest = int(np.diff(np.asarray(cu_seqlens)).max(initial=0))
        if self.max_tokens is not None and longest > self.max_tokens:
            raise InputError(
                f"the text has {longest:,} tokens with its special ones, and this {self.title}"
                f" reads at most {self.max_tokens:,}; cut it with max_tokens=, split it into"
                " windows, or use a recurrent model, which has no limit"
            )


def expect_ids(ids: Any, vocab_size: int, least: int = 0) -> None:
    """Raise InputError unless `ids` is a tensor or an array (T,) of token ids, T >= `least`."""
    kind = str(getattr(ids, "dtype", type(ids).__name__)).removeprefix("torch.")
    shape = tuple(getattr(ids, "shape", ()))
    whole = re.fullmatch(r"u?int\d+", kind) is not None
    low, high = (int(ids.min()), int(ids.max())) if whole and 0 not in shape else (0, 0)
    if not whole or len(shape) != 1 or shape[0] < least or low < 0 or high >= vocab_size:
        raise InputError(
            f"token ids are {low} to {high}, {kind} of shape {shape}; expected "
            f"whole numbers from 0 to {vocab_size - 1}, packed in one dimension (T,), T >= {least}"
        )


def digest_arrays(name: str, arrays: Iterable[tuple[str, np.ndarray]]) -> str:
    """Return a hex digest of a name and of named arrays, in this order; uint16 is bf16."""
    digest = hashlib.blake2b(name.encode(), digest_size=20)
    for key, array in arrays:
        dtype = "bfloat16" if array.dtype == np.uint16 else array.dtype
        digest.update(f"{key}{array.shape}torch.{dtype}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
