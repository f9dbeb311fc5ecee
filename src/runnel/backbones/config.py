"""What every backbone declares: its sizes (`BackboneConfig`), and the blocks in which it reads a
text (`Blocks`).

T  tokens of a text
"""

import hashlib
import inspect
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from runnel.config import arguments
from runnel.errors import InputError, StateError


@dataclass(frozen=True)
class BackboneConfig:
    """The sizes of a backbone. Sub-classes are frozen dataclasses, with a field for each further
    size or scale.
    """

    # names of fields that `__post_init__` does not check
    unchecked: ClassVar[tuple[str, ...]] = ()
    vocab_size: int  # rows of the embedding table
    hidden_size: int  # width of the hidden vectors
    num_layers: int

    def __post_init__(self) -> None:
        """Raise InputError unless whole numbers are at least 1, and other numbers positive and
        finite.
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
        """Raise InputError, with the values of these fields and their `rule` in words, unless the
        rule `holds`.
        """
        if not holds:
            values = " and ".join(f"{name} {getattr(self, name)}" for name in names)
            raise InputError(f"{values}: expected {rule}")

    def expect_multiple(self, name: str, of: str) -> None:
        """Raise InputError unless the value of the field `name` is a multiple of the field `of`."""
        is_multiple = getattr(self, name) % getattr(self, of) == 0
        self.expect(is_multiple, name, of, rule="a multiple of the latter")

    def to_dict(self) -> dict[str, object]:
        """Return plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, object], where: str = "the config") -> Self:
        """Return the inverse of `to_dict`. Raises CheckpointError on unknown or missing names and
        values of another type.
        """
        return cls(**arguments(cls, values, where))


class Blocks:
    """What every backbone says without its weights: its sizes and title, and the blocks in which it
    reads a text. A block is tokens that it must read together; layers are not meant.
    """

    title: ClassVar[str]  # the architecture's usual name, for messages
    without_torch: ClassVar[bool] = False  # it reads and returns numpy arrays, not tensors
    # Tokens of a block: 1 in a recurrence, those of a passage in an encoder. None: the whole text
    # is one block.
    block: int | None = 1
    # whether it carries a state from block to block; others have no state
    recurrent: ClassVar[bool] = True
    max_tokens: int | None = None  # the longest block it can read; None: any
    own_sentences: bool = (
        False  # whether it has layers for sentences alone: see `encoder/config.py`
    )

    def set_config(self, config: Any) -> None:
        """Take the sizes of a config."""
        self.config: BackboneConfig = config
        self.vocab_size: int = config.vocab_size
        self.hidden_size: int = config.hidden_size
        self.num_layers: int = config.num_layers

    @property
    def passage_tokens(self) -> int | None:
        """The tokens of the passages in which the backbone reads a long text
        (`models/pocket/layout.py`); None: it does not read in passages.
        """
        # of a block that is the whole text, `block` is None too
        return None if self.block == 1 else self.block

    @property
    def longest_text(self) -> int | None:
        """The tokens, special ones included, of the longest text it can read; None: any."""
        return self.max_tokens if self.block is None else None

    def block_ends(self, ids: np.ndarray) -> np.ndarray | None:
        """Return the ends of the blocks of a text with these ids (T,), in ascending order, the last
        one at T; None if a block may end after any token.

        A text gives the same hidden vectors in whatever steps it is read, if each step has whole
        blocks.
        """
        return None if self.recurrent else np.array([len(ids)])

    def check_whole(self, cu_seqlens: ArrayLike, *, continues: bool) -> None:
        """Raise StateError if a backbone without a state should continue from one (`continues`),
        and InputError if a sequence is too long for it.
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
