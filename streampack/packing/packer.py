"""Packer: base class of streampack's packers and of a user's own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from streampack.arguments import check_call, is_whole
from streampack.cached import cached_property
from streampack.errors import ConfigError, PlanError
from streampack.leaves import LIMITS, of_settings
from streampack.packing.overflow import OVERFLOWS, Overflow
from streampack.packing.plan import Plan
from streampack.packing.request import DocumentSizes, Selection, WindowRequest
from streampack.packing.row_limits import RowLimits
from streampack.packing.selection import fullest_rows

if TYPE_CHECKING:
    from typing_extensions import Self


class Packer(ABC):
    """A pure function from document lengths to rows. Derive your own packer from it.

    A packer defines `plan`, `describe` and `seq_lens`; everything else has a default. A run calls
    `plan_window`, which by default plans the whole window and takes the fullest rows.

    Attributes:
        seq_lens: lengths of the rows that plans use, in tokens, ascending.
        overflow: policy for documents longer than a row. In a run the window applies "truncate"
            and "drop" before the packer sees the lengths.
        inserts_eos: True if plans insert EOS where they cut, so that an EOS id is required.
        mask_repeated: True to leave tokens repeated from an earlier row out of the loss.
        keeps_order: True if consecutive documents mostly share a row.
        keeps_whole: True if a document that fits a row is never cut.
        balance: "attention", or one of `weights`, if `plan_window` asks `WindowRequest.choice`, as
            the functions of `packing.selection` do; None to ignore costs.
        capacity: limits of a row by document field, which `limits` applies.
        separate_by: document field with a key; documents with different keys never share a row.
        separate_batches: True if all rows of a batch have one key.
        weights: document fields that rows are filled or balanced by. If there are any, `plan`
            receives their values as ``weights=``, a mapping from name to (N,) int64.
        batch_tokens: tokens per batch, a multiple of the longest row; None leaves it to the run.
        shares_batches: True if several ranks share a batch of some row length.
        packs_members: True if `plan_window` places the documents of a group one by one, in rows of
            one batch. `WindowRequest.members` then has their lengths.
        revision: revision of the algorithm; raise it when plans change.
    """

    seq_lens: tuple[int, ...]
    overflow: Overflow = "split"
    inserts_eos: bool = False
    mask_repeated: bool = False
    keeps_order: bool = False
    keeps_whole: bool = False
    balance: Literal["attention", "loss", "patches"] | None = None
    capacity: Mapping[str, int] = MappingProxyType({})
    separate_by: str | None = None
    separate_batches: bool = False
    weights: tuple[str, ...] = ()
    batch_tokens: int | None = None
    shares_batches: bool = False
    packs_members: bool = False
    revision: ClassVar[int] = 1

    def __new__(cls, *arguments: Any, **settings: Any) -> Self:
        """Raise `TypeError`, with what to write, for settings that the packer does not have."""
        if arguments or settings:  # not of a copy, which pickle makes without
            check_call(cls.__name__, cls.__init__, arguments, settings)
        return super().__new__(cls)

    @abstractmethod
    def plan(self, lengths: NDArray[np.int64], *, final: bool, seed: int) -> Plan:
        """Pack documents of these lengths (N,).

        Args:
            lengths: (N,) int64, tokens per document, in order of arrival.
            final: True if these are the last documents.
            seed: seed of every random decision; equal arguments give an equal plan anywhere.

        Raises:
            PlanError: a document is longer than a row and `overflow` is "error".
        """

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the JSON-compatible identity for the fingerprint: class, parameters, revision."""

    def _described(self, *settings: str, if_set: Sequence[str] = ()) -> dict[str, Any]:
        """Return class, revision and these settings; `if_set` only if they are not the default."""
        changed = [name for name in if_set if getattr(self, name) != getattr(type(self), name)]
        return {
            **{name: getattr(self, name) for name in changed},
            "kind": type(self).__name__,
            "revision": self.revision,
            **{name: getattr(self, name) for name in settings},
        }

    def plan_window(self, request: WindowRequest) -> Selection:
        """Plan the documents of a lane's window, and select the rows to deliver this round.

        It must be a pure function of the request, as `plan` is of its arguments. By default it
        plans everything and selects with `fullest_rows`, unless the `limits` of rows select.
        """
        request = request.choice.adapted(request)
        weights = {"weights": request.weights} if self.weights else {}
        plan = self.plan(request.lengths, final=request.final, seed=request.seed, **weights)
        if not isinstance(plan, Plan):
            raise PlanError(
                f"{type(self).__name__}.plan must return a Plan, got {plan!r:.80}.",
                remedy="Return a streampack.packing.Plan.",
            )
        return request.limits.selected(plan, request) or fullest_rows(plan, request)

    def fits(self, sizes: DocumentSizes, batch_tokens: int) -> NDArray[np.bool_]:
        """Return (N,) bool: documents that fit a row whole."""
        return self.limits.fits(sizes, self.seq_lens[-1])

    @cached_property
    def limits(self) -> RowLimits:
        """Limits of a row: its tokens, and the ones of `capacity` and `separate_by`."""
        limits: RowLimits = next(of_settings(self, Packer, LIMITS), RowLimits())
        return limits

    @property
    def max_tokens_per_row(self) -> int:
        """Largest number of tokens a row consumes, dropped ones included; by default the row."""
        return self.seq_lens[-1]

    def seq_len_at(self, step: int, *, schedule_seed: int) -> int:
        """Return the tokens per row of the batch with index `step`; by default the longest row."""
        return self.seq_lens[-1]

    def rows_per_batch(self, seq_len: NDArray[np.int64], batch_tokens: int) -> NDArray[np.int64]:
        """Return the rows (B,) per batch for row lengths (B,); by default of equal tokens."""
        return batch_tokens // seq_len

    def batch_share(self, count: int, *, schedule_seed: int) -> float:
        """Return the slots of a lane's first `count` batches, in units of ``batch_tokens``."""
        return 1.0

    @property
    def needs_sample(self) -> bool:
        """True if the packer must measure a sample of the corpus before a run."""
        return False

    def with_sample(self, lengths: NDArray[np.int64]) -> Packer:
        """Return a copy with settings measured on a sample of document lengths (N,)."""
        return self

    def with_saved(self, description: Mapping[str, Any]) -> Packer:
        """Return a copy with the settings that a saved run measured, if they apply.

        Args:
            description: output of `describe` of the saved run's packer.
        """
        return self


def require_packer(packer: object) -> Packer:
    """Return `packer`; raise `ConfigError` unless it is a `Packer` with valid attributes."""
    if not isinstance(packer, Packer):
        raise ConfigError(
            f"packer must be a Packer, got {packer!r:.80}.",
            "Pass BestFitDecreasing(seq_len=2048) or another packer of streampack.packing.",
            setting="packer",
        )
    name, sizes = type(packer).__name__, getattr(packer, "seq_lens", None)
    whole = isinstance(sizes, tuple) and all(is_whole(n) and 2 <= n < 1 << 31 for n in sizes)
    if not whole or not sizes or list(sizes) != sorted(set(sizes)):
        raise ConfigError(
            f"{name}.seq_lens must be a tuple of ascending row lengths, got {sizes!r:.80}.",
            "Set it in tokens, for example seq_lens = (2048,).",
            setting="seq_lens",
        )
    if packer.overflow not in OVERFLOWS:
        raise ConfigError(
            f"{name}.overflow must be one of {', '.join(OVERFLOWS)}, got {packer.overflow!r:.80}.",
            f"Set the attribute in {name}.",
            setting="overflow",
        )
    return packer
