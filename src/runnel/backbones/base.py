"""The contract of every backbone: packed token ids and a state in, hidden vectors and a state out.

`Backbone.forward` reads with gradients, if they are wanted. `Backbone.step` is what the engine
calls: without gradients, with states in a pool, by kernels (`FastPath`) where they can run.

    forward   _forward (each family's own), or step if nothing needs gradients
    step      embed -> self.fast.step, the kernels; or _step, which calls _forward

T  tokens in the packed batch      S  sequences in the packed batch
D  width of the hidden vectors     L  layers
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib import import_module
from typing import ClassVar, NamedTuple, Protocol, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runnel.backbones.config import BackboneConfig, Blocks, digest_arrays, expect_ids
from runnel.backbones.int8 import Int8Linear, int8_problem
from runnel.backbones.state import State
from runnel.errors import InputError
from runnel.ops.backend import inference, numba_problem, plain_numbers, say_once


class FastPath(Protocol):
    """Inference kernels of one backbone on one device, which run `Backbone.step` after the
    embedding.

    `hidden` (T, D) are the embedded tokens (`Backbone.embed_with`); `step` may overwrite them.
    """

    def step(
        self, hidden: Tensor, cu_seqlens: Tensor, pool: State, read_rows: Tensor, write_rows: Tensor
    ) -> Tensor:
        """Return hidden vectors (T, D); the other arguments are those of `Backbone.step`."""


# the ids of the begin and end marker by the name of a vocabulary, see `models/foreign/bare.py`
Markers = Mapping[str, tuple[int | None, int | None]]


class PlainForm(NamedTuple):
    """The chunked form of a recurrence in plain torch, and its memory: `planning.py` uses it."""

    operator: str  # the operator's name in `ops`
    # tokens of a chunk; the fastest number, and other numbers also take more memory
    chunk: int
    copies: int  # how many tensors of a chunk are in memory at a time, as measured


class Backbone(Blocks, nn.Module, ABC):
    """A language model without its LM head; all are recurrent except `Encoder` and `Library`.

    Hidden vectors are those after the final norm. Weights may be bf16; the residual stream and the
    state are fp32.

    Sub-classes give the class attributes and properties below and `_forward`. Only `Library`, which
    needs the ids and has no state, overrides `forward` and `step`.
    """

    architecture: ClassVar[str]
    config_class: ClassVar[type[BackboneConfig]]
    # Ends of the names of the weights that take the low dtype: the weights of matrix products and
    # look-ups. The other weights (of norms, convolutions, exponentials, recurrences) are small and
    # stay fp32.
    matrices: ClassVar[tuple[str, ...]]
    # ends of the names of the linear layers that have kernels for 8 bits
    int8_layers: ClassVar[tuple[str, ...]] = ()
    # ends of the names of small linear layers that feed exponentials: never in 4 bits, in which
    # training may store the others (`models/recurrent/adapters.py`)
    stays_wide: ClassVar[tuple[str, ...]] = ()
    plain: PlainForm | None = None  # None: the recurrence has no chunks in plain torch
    model_types: ClassVar[tuple[str, ...]] = ()  # `model_type` in published config.json files
    # The begin and end markers that published models were trained with. Their configs often name
    # others.
    markers: ClassVar[Markers] = {}
    # with a vocabulary that is not in `markers`: whether a text begins with its begin marker
    begins: ClassVar[bool] = True
    # whether published LM heads are the embedding table, where the config does not say
    ties_lm_head: ClassVar[bool] = False
    # published LM heads compute c tanh(x / c) of each logit x: c, where the config does not say
    logit_cap: ClassVar[float | None] = None
    # whether the family's folder has a `cpu.py` with its `FastPath`: class Mamba1 has Mamba1Cpu
    has_kernels: ClassVar[bool] = False
    embeddings: nn.Embedding  # of tokens

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.set_config(config)
        self.fast: FastPath | None = None  # set by `prepare`, used in evaluation mode
        self._fingerprint: str | None = None

    @abstractmethod
    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of one sequence's state by name, layers first, e.g. {"conv": (L, C,
        w-1), "ssm": (L, H, P, N)}.
        """

    @abstractmethod
    def _forward(
        self,
        ids: Tensor,
        added: Tensor | None,
        cu_seqlens: Tensor,
        state: State | None,
        recompute: bool = False,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Embed tokens (`embed_with`) and run them through all layers and the final norm; return
        the hidden vectors (T, D) and the tensors of the state after them, by name. `state` is left
        unchanged. Arguments as for `forward`.
        """

    def embed(self, ids: Tensor) -> Tensor:
        """Return token embeddings (T, D) fp32 of ids (T,)."""
        table = self.embeddings.weight
        return F.embedding(ids, table).to(stream_dtype(table))

    def prepare(self) -> None:
        """Build `self.fast` where kernels run for the present device and weights. Call it again
        after changing weights.
        """
        self.fast = None
        problem = self.kernel_problem()
        if problem is not None:
            # whether it would have kernels if numba could run
            lost = self.has_kernels and self.device.type == "cpu" and problem == numba_problem()
            say_once(
                f"{self.title} runs in plain torch, because {problem}",
                logging.WARNING if lost else logging.INFO,
            )
            return
        # here, because numba takes a while to import
        kernels = import_module(type(self).__module__.rpartition(".")[0] + ".cpu")
        self.fast = getattr(kernels, f"{type(self).__name__}Cpu")(self)
        say_once(f"{self.title} runs with kernels compiled for this processor")

    def kernel_problem(self) -> str | None:
        """Return why the CPU kernels cannot run, or None if they can."""
        if not self.has_kernels:
            return "it has no kernels"
        if self.device.type != "cpu":
            return f"it is on {self.device}"
        if self.adapted:
            return "it has adapters; merge them for the kernels"
        linear = [
            (name, m) for name, m in self.named_modules() if isinstance(m, nn.Linear | Int8Linear)
        ]
        large = {weight_dtype(layer) for name, layer in linear if name.endswith(self.int8_layers)}
        other = {
            weight_dtype(layer) for name, layer in linear if not name.endswith(self.int8_layers)
        }
        wide = other | (large - {torch.int8})
        if len(large) > 1 or len(wide) > 1 or not wide <= {torch.float32, torch.bfloat16}:
            dtypes = ", ".join(sorted(map(str, large | other)))
            return (
                f"its linear layers are {dtypes} (the kernels take all float32, all bfloat16, or 8"
                " bits with one of them)"
            )
        return int8_problem(self.device) if torch.int8 in large else numba_problem()

    def train(self, mode: bool = True) -> Self:
        """Set the mode. Training drops the kernels' copies of the weights and the fingerprint;
        `eval()` builds the kernels.
        """
        super().train(mode)
        self.fast, self._fingerprint = None, None
        if not mode:
            self.prepare()
        return self

    @property
    def adapted(self) -> bool:
        """Whether a layer has a LoRA adapter, which the kernels would ignore: they read plain
        weights.
        """
        return any(hasattr(module, "base_layer") for module in self.modules())

    def forward(
        self,
        ids: Tensor,
        cu_seqlens: Tensor | None = None,
        state: State | None = None,
        added: Tensor | None = None,
        *,
        recompute: bool = False,
    ) -> tuple[Tensor, State]:
        """Read packed sequences.

        Args:
            ids: (T,) int32 or int64 token ids, sequences end to end without padding.
            cu_seqlens: (S+1,) int, cumulative lengths starting at 0 and ending at T; default: one
                sequence. Empty sequences are allowed.
            state: states of the S sequences to continue; default: all start from zero. Left
                unchanged.
            added: (T, D) vectors added to the token embeddings.
            recompute: keep only each layer's input for the backward pass, which then runs the layer
                again (in training mode).

        Returns:
            hidden (T, D) fp32, and the state (S rows) after the last token of each sequence. The
            state of a backbone that is not recurrent holds only the numbers of tokens.

        Raises:
            InputError: ids are outside the vocabulary, or cu_seqlens or the lengths are invalid for
                this backbone.
            StateError: the state belongs to another backbone, or this backbone has no state.
        """
        cu_seqlens = self._check(ids, cu_seqlens, state)
        inputs = [
            *self.parameters(),
            *([added] if added is not None else []),
            *(state.tensors.values() if state else []),
        ]
        if self.fast is None or (
            torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)
        ):
            hidden, new = self._forward(ids, added, cu_seqlens, state, recompute)
            tokens = cu_seqlens.diff().to("cpu", torch.int64)
            return hidden, State(new, tokens if state is None else state.tokens + tokens)
        rows = torch.arange(cu_seqlens.numel() - 1)
        pool = self.new_state(rows.numel()) if state is None else state.clone()
        read_rows = rows if self.recurrent else torch.full_like(rows, -1)  # no state to read
        return self.step(ids, cu_seqlens, pool, read_rows, rows, added), pool

    def step(
        self,
        ids: Tensor,
        cu_seqlens: Tensor,
        pool: State,
        read_rows: Tensor,
        write_rows: Tensor,
        added: Tensor | None = None,
    ) -> Tensor:
        """Run one step of the engine, without autograd: like `forward`, with states in a pool that
        is updated in place.

        read_rows and write_rows (S,) int64 are the rows of the pool where each sequence's state is
        (-1: start from zero) and where its end state goes (-1: nowhere). Several sequences may read
        one row, a fork without a copy, but no row may be written by one sequence and read or
        written by another.
        """
        if not self.recurrent:
            self.check_whole(cu_seqlens, continues=bool((read_rows >= 0).any()))
        with inference():
            rows = (cu_seqlens, pool, read_rows, write_rows)
            if self.fast is None:
                hidden = self._step(ids, added, *rows)
            else:
                hidden = self.fast.step(self.embed_with(ids, added), *rows)
            writes = write_rows >= 0
            if writes.any():
                before = torch.where(read_rows >= 0, pool.tokens[read_rows.clamp(min=0)], 0)
                pool.tokens[write_rows[writes]] = (before + cu_seqlens.diff().to(before))[writes]
            return hidden

    def embed_with(self, ids: Tensor, added: Tensor | None) -> Tensor:
        """Return token embeddings with the vectors that are added to them, (T, D)."""
        return self.embed(ids) if added is None else self.embed(ids) + added

    def _step(
        self,
        ids: Tensor,
        added: Tensor | None,
        cu_seqlens: Tensor,
        pool: State,
        read_rows: Tensor,
        write_rows: Tensor,
    ) -> Tensor:
        fresh = read_rows < 0
        state = pool.select(read_rows.clamp(min=0)) if not bool(fresh.all()) else None
        if state is not None:
            for tensor in state.tensors.values():
                tensor[fresh] = 0
        hidden, new = self._forward(ids, added, cu_seqlens, state)
        kept = write_rows >= 0
        for name, tensor in new.items():
            pool[name][write_rows[kept]] = tensor[kept].to(pool[name].dtype)
        return hidden

    @plain_numbers()
    def new_state(self, rows: int) -> State:
        """Return a zero state of `rows` sequences, fp32."""
        tensors = {
            name: torch.zeros(rows, *shape, device=self.device)
            for name, shape in self.state_shapes().items()
        }
        return State(tensors, torch.zeros(rows, dtype=torch.int64))

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def dtypes(self) -> list[str]:
        """The dtypes of the weights, sorted."""
        return sorted(
            {str(tensor.dtype).removeprefix("torch.") for tensor in self.state_dict().values()}
        )

    @property
    def state_bytes(self) -> int:
        """Bytes of fp32 state per sequence."""
        return 4 * sum(torch.Size(shape).numel() for shape in self.state_shapes().values())

    @property
    @abstractmethod
    def step_bytes_per_token(self) -> int:
        """Bytes of working memory that `step` takes for each token of a step, rounded up."""

    @property
    @abstractmethod
    def flops_per_token(self) -> int:
        """Useful floating-point operations for one token, a multiply-add counting 2: linear layers,
        convolution, recurrence.

        The embedding, the LM head and, in transformers, attention are left out.
        """

    def linear_layers(self) -> list[nn.Linear | Int8Linear]:
        """Return the linear layers that process every token of a text."""
        return [module for module in self.modules() if isinstance(module, nn.Linear | Int8Linear)]

    def flops(self, tokens: int) -> int:
        """Return the useful floating-point operations for a text of `tokens` tokens, attention
        included.
        """
        return tokens * self.flops_per_token

    def fingerprint(self) -> str:
        """Return a hex digest of the architecture and every weight, computed once; saved states
        carry it.
        """
        if self._fingerprint is None:
            self._fingerprint = digest_weights(self.architecture, self)
        return self._fingerprint

    def _check(self, ids: Tensor, cu_seqlens: Tensor | None, state: State | None) -> Tensor:
        expect_ids(ids, self.vocab_size)
        if cu_seqlens is None:
            cu_seqlens = torch.tensor([0, ids.numel()])
        if (
            int(cu_seqlens[0]) != 0
            or int(cu_seqlens[-1]) != ids.numel()
            or bool((cu_seqlens.diff() < 0).any())
        ):
            raise InputError(
                f"cu_seqlens must rise from 0 to the {ids.numel()} tokens in ids, got"
                f" {cu_seqlens.tolist()[:8]}"
            )
        if not self.recurrent:
            self.check_whole(cu_seqlens, continues=state is not None)
        if state is not None:
            state.check(self.state_shapes(), rows=cu_seqlens.numel() - 1)
        return cu_seqlens


def digest_weights(name: str, module: nn.Module) -> str:
    """Return a hex digest of a name and every tensor of a module."""
    tensors = [(key, tensor.detach().cpu()) for key, tensor in sorted(module.state_dict().items())]
    return digest_arrays(
        name,
        (
            (key, (t.view(torch.uint16) if t.dtype == torch.bfloat16 else t).numpy())
            for key, t in tensors
        ),
    )


def stream_dtype(weight: Tensor) -> torch.dtype:
    """Return the dtype of the residual stream and of the state: fp32 for every weight dtype except
    fp64.
    """
    return torch.float64 if weight.dtype == torch.float64 else torch.float32


def weight_dtype(layer: nn.Linear | Int8Linear) -> torch.dtype:
    """Return the dtype of a layer's weight, without unpacking it."""
    return torch.int8 if isinstance(layer, Int8Linear) else layer.weight.dtype
