"""JSON, read strictly into dataclasses, and the configuration of every backbone: its shape, and how
it takes a text apart.

That of the encoder is here too, because it is read with torch (`backbones/encoder/model.py`) and
without (`arrays.py`).

What a file holds is of the kind that its dataclass says, or an error names it. No torch here, and
numpy only inside functions.

    T  tokens of a text
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from runnel.errors import CheckpointError, InputError, RunnelError, StateError, errors_as

if TYPE_CHECKING:
    import numpy as np

Row = TypeVar("Row")


def read_model_json(
    path: Path,
    *,
    expect: type = dict,
    default: object = None,
    parse: Callable[[str], Any] = json.loads,
) -> Any:
    """Return the object, or the list with `expect=list`, in a JSON file of a model folder, or
    `default` if it is missing.
    """
    if default is not None and not path.exists():
        return default
    # Each parser has errors of its own.
    with errors_as(
        CheckpointError, f"{path} cannot be read", Exception, advice="copy or download it again"
    ):
        value = parse(path.read_text(encoding="utf-8"))
    if not isinstance(value, expect):
        raise CheckpointError(
            f"{path} holds a {type(value).__name__}; expected"
            f" {'an object' if expect is dict else 'a list'}"
        )
    return value


@contextmanager
def valid_config(where: str) -> Iterator[None]:
    """Turn an InputError, which speaks of values that a user passes, into a CheckpointError for
    those of a config.
    """
    try:
        yield
    except InputError as error:
        raise CheckpointError(f"{where}: its config is not a valid model: {error}") from error


_MOST = 1 << 31  # no size, count or token id in a JSON object is larger


def arguments(
    target: type,
    values: object,
    what: str,
    given: tuple[str, ...] = (),
    *,
    defaults: bool = False,
    error: type[RunnelError] = CheckpointError,
) -> dict[str, Any]:
    """Return the values of a JSON object, which is called `what`, as the keyword arguments of
    `target` that are not `given`.

    All fields of a dataclass must be there, unless `defaults` may be left out, as those of another
    class may. Annotations are int (from 0 to 2^31), float, bool, str, None, Literal, dict, tuple,
    Any, a dataclass, unions of these.
    """
    hints = get_type_hints(target if is_dataclass(target) else target.__init__)  # type: ignore[misc]
    named = [
        p
        for p in inspect.signature(target).parameters.values()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    parameters = [p for p in named if p.name not in given]
    known = {p.name for p in parameters}
    whole = is_dataclass(target) and not defaults
    needed = {p.name for p in parameters if whole or p.default is inspect.Parameter.empty}
    if not isinstance(values, Mapping) or not needed <= set(values) <= known:
        names = set(values) if isinstance(values, Mapping) else set()
        raise error(
            f"{what} is {_short(values)}; expected an object with {sorted(known)}; "
            f"unknown: {sorted(names - known)}, missing: {sorted(needed - names)}"
        )
    return {
        name: _read(value, hints[name], f"{what}: {name}", defaults, error)
        for name, value in values.items()
    }


def read_row(kind: type[Row], row: Mapping[str, Any], where: object, **names: str) -> Row:
    """Return a row of a file as a dataclass, whose fields have the names of the keys, or also
    others: `names`.

    Raises:
        InputError: a key is missing or has a value of another kind. Other keys are ignored.
    """
    hints, values = get_type_hints(kind), {}
    for field_ in fields(kind):  # type: ignore[arg-type]
        name = names[field_.name] if names.get(field_.name, "") in row else field_.name
        if name in row or field_.default is field_.default_factory is MISSING:
            name = name if name in row else names.get(name, name)
            values[field_.name] = _read(
                row.get(name), hints[field_.name], f"{where}: {name!r}", True, InputError
            )
    return kind(**values)


def _read(value: object, kind: Any, what: str, defaults: bool, error: type[RunnelError]) -> Any:
    """Return the value if it is of this kind, a whole number as a float where one is expected."""
    origin = get_origin(kind)
    if kind is Any or (kind is float and isinstance(value, float) and not math.isnan(value)):
        return value
    if origin in (Union, types.UnionType):
        chosen = next((one for one in get_args(kind) if one is not types.NoneType), Any)
        return None if value is None else _read(value, chosen, what, defaults, error)
    if origin is Literal and value in get_args(kind) and isinstance(value, str):
        return value
    if (
        origin is tuple
        and isinstance(value, list)
        and (... in get_args(kind) or len(value) == len(get_args(kind)))
    ):
        return tuple(_read(item, get_args(kind)[0], what, defaults, error) for item in value)
    if origin is dict and isinstance(value, Mapping):
        return {
            name: _read(item, get_args(kind)[1], f"{what}.{name}", defaults, error)
            for name, item in value.items()
        }
    if inspect.isclass(kind) and is_dataclass(kind):
        return kind(**arguments(kind, value, what, defaults=defaults, error=error))
    if (
        kind in (int, float)
        and isinstance(value, int)
        and not isinstance(value, bool)
        and 0 <= value < _MOST
    ):
        return kind(value)
    if kind in (bool, str) and isinstance(value, kind):
        return value
    raise error(f"{what} is {_short(value)}; expected {_NAMES.get(kind) or _choices(kind)}")


_NAMES: dict[Any, str] = {
    int: f"a whole number from 0 to {_MOST - 1:,}",
    float: "a number",
    bool: "true or false",
    str: "text",
}


def _choices(kind: Any) -> str:
    if get_origin(kind) is tuple:
        return "a list" if ... in get_args(kind) else f"a list of {len(get_args(kind))}"
    return (
        f"one of {', '.join(map(str, get_args(kind)))}"
        if get_origin(kind) is Literal
        else "an object"
    )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# ---- backbones -----------------------------------------------------------------------------------
@dataclass(frozen=True)
class BackboneConfig:
    """The shape of a backbone. Sub-classes are frozen dataclasses; `unchecked` names fields that
    any number may be in.
    """

    unchecked: ClassVar[tuple[str, ...]] = ()
    if TYPE_CHECKING:

        @property
        def num_layers(self) -> int: ...  # a field or a property of every sub-class

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
    """In what blocks a backbone reads a text."""

    title: ClassVar[str]  # the architecture's usual name, for messages
    without_torch: ClassVar[bool] = False  # it reads arrays, and gives arrays
    # tokens that are read together: 1 in a recurrence, a passage's in an encoder; None: the whole
    # text
    block: int | None = 1
    max_tokens: int | None = None  # the longest block it can read; None: any
    own_sentences: bool = False  # whether layers of its own read sentences: `Encoder.step_forms`

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
        import numpy as np

        return None if self.recurrent else np.array([len(ids)])

    def check_whole(self, cu_seqlens: Any, *, continues: bool) -> None:
        """Raise for what a backbone without a state cannot do: continue from a state, or read a
        sequence that is too long.
        """
        import numpy as np

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
    kind, shape = (
        str(getattr(ids, "dtype", type(ids).__name__)).removeprefix("torch."),
        tuple(getattr(ids, "shape", ())),
    )
    whole = re.fullmatch(r"u?int\d+", kind) is not None
    low, high = (int(ids.min()), int(ids.max())) if whole and 0 not in shape else (0, 0)
    if not whole or len(shape) != 1 or shape[0] < least or low < 0 or high >= vocab_size:
        raise InputError(
            f"token ids are {low} to {high}, {kind} of shape {shape}; expected "
            f"whole numbers from 0 to {vocab_size - 1}, packed in one dimension (T,), T >= {least}"
        )


def digest_arrays(name: str, arrays: Iterable[tuple[str, np.ndarray]]) -> str:
    """Return a hex digest of a name and of named arrays, in this order; uint16 is bf16."""
    import numpy as np

    digest = hashlib.blake2b(name.encode(), digest_size=20)
    for key, array in arrays:
        dtype = "bfloat16" if array.dtype == np.uint16 else array.dtype
        digest.update(f"{key}{array.shape}torch.{dtype}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


# ---- the encoder, which is read with torch and without -------------------------------------------

MARKERS = 2  # [CLS] and [SEP] around a passage
Form = Literal["texts", "sentences", "judge", "pair"]
FORMS: tuple[Form, ...] = get_args(Form)
# a form's own
_LAYERS: dict[Form, str] = {
    "sentences": "sentence_layers",
    "judge": "judge_layers",
    "pair": "pair_layers",
}


@dataclass(frozen=True)
class EncoderConfig(BackboneConfig):
    """Shape of an encoder."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    intermediate_size: int
    max_positions: int = 512
    layer_norm_eps: float = 1e-12
    passage_tokens: int = 160  # the most of a passage, between the markers
    begin_id: int | None = None  # the token that begins a passage; None: any text is one sequence
    sentence_layers: int = 0  # how many upper layers have another form for sentences, ...
    judge_layers: int = 0  # ... for the best of them, ...
    pair_layers: int = 0  # ... and for the query and one of these together
    unchecked = ("begin_id", *_LAYERS.values())

    def __post_init__(self) -> None:
        super().__post_init__()
        self.expect(
            self.hidden_size % self.num_heads == 0,
            "hidden_size",
            "num_heads",
            rule="a multiple of the latter",
        )
        fits = self.passage_tokens + MARKERS <= self.max_positions
        self.expect(
            fits,
            "passage_tokens",
            "max_positions",
            rule=f"passages and their {MARKERS} markers to fit the positions",
        )
        for name in _LAYERS.values():
            self.expect(
                0 <= getattr(self, name) <= self.num_layers,
                name,
                "num_layers",
                rule="at most all layers",
            )

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_heads

    def layer_names(self, form: Form) -> list[str]:
        """Return the names of all layers of a form in order."""
        own = self.own_layers(form)
        return [f"layers.{i}" for i in range(self.num_layers - own)] + [
            f"{_LAYERS[form]}.{i}" for i in range(own)
        ]

    def own_layers(self, form: Form) -> int:
        """Return how many upper layers of a form are not those of texts."""
        return getattr(self, _LAYERS[form]) if form in _LAYERS else 0

    def shared_layers(self, forms: Sequence[Form]) -> int:
        """Return how many lower layers all these forms have in common."""
        return self.num_layers - max(map(self.own_layers, forms))


class EncoderBlocks(Blocks):
    """The blocks of an encoder."""

    title = "Encoder"
    config: EncoderConfig
    max_tokens: int
    vocab_size: int
    hidden_size: int
    num_layers: int

    def set_config(self, config: EncoderConfig) -> None:
        self.config, self.max_tokens, self.own_sentences = (
            config,
            config.max_positions,
            config.sentence_layers > 0,
        )
        self.vocab_size, self.hidden_size, self.num_layers = (
            config.vocab_size,
            config.hidden_size,
            config.num_layers,
        )
        self.block = None if config.begin_id is None else config.passage_tokens

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        return {}

    @property
    def step_bytes_per_token(self) -> int:
        """Residual, queries, keys, values, what the heads see, and the wider of these and the
        feed-forward layer, all fp32.
        """
        c = self.config
        return 4 * (4 * c.hidden_size + max(6 * c.hidden_size, 2 * c.intermediate_size))

    @property
    def flops_per_token(self) -> int:
        """Linear layers alone; `flops` adds attention, which grows with the sequence."""
        c = self.config
        return 2 * c.num_layers * c.hidden_size * (4 * c.hidden_size + 2 * c.intermediate_size)

    def flops(self, tokens: int) -> int:
        """As `Backbone.flops`, for a text that is read as one sequence, or as many of the longest
        allowed.
        """
        seen = min(tokens, self.config.max_positions)
        return tokens * (self.flops_per_token + 4 * self.num_layers * self.hidden_size * seen)

    def block_ends(self, ids: np.ndarray) -> np.ndarray:
        import numpy as np

        if self.config.begin_id is None:
            return np.array([len(ids)])
        return np.append(np.flatnonzero(ids[1:] == self.config.begin_id) + 1, len(ids))
