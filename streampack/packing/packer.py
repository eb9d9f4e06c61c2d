"""Packer: what a packer is, for ours and for a user's own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from streampack.arguments import check_call, is_whole
from streampack.errors import ConfigError, PlanError
from streampack.packing.overflow import OVERFLOWS, Overflow
from streampack.packing.plan import Plan
from streampack.packing.request import DocumentSizes, Selection, WindowRequest
from streampack.packing.selection import full_rows_first, fullest_rows

if TYPE_CHECKING:
    from typing_extensions import Self


class Packer(ABC):
    """A pure function from document lengths to rows. Derive your own packer from it.

    A packer has `plan`, `describe` and `seq_lens`; everything else has a default. `plan_window` is
    what a run asks; by default it plans the whole window and takes the fullest rows.

    Attributes:
        seq_lens: lengths of the rows that plans use, in tokens, ascending.
        overflow: what happens to documents longer than a row. In a run the window applies
            "truncate" and "drop" before the packer sees the lengths.
        inserts_eos: True if plans insert EOS where they cut, so that an EOS id is needed.
        mask_repeated: True if tokens repeated from an earlier row do not count in the loss.
        keeps_order: True if documents that arrive one after the other mostly share a row.
        keeps_whole: True if a document that fits a row is never cut.
        balance: "attention", or one of `weights`, if `plan_window` is to follow
            `WindowRequest.balance`, as the functions of `packing.selection` do; None if a run goes
            by no costs.
        capacity: what a row holds at most of a document field, by its name. `fits` decides by it,
            and rows count as full by it.
        weights: the document fields that rows are filled and balanced by. `plan` of a packer that
            has some takes their values as ``weights=``, by name, each (N,) int64.
        batch_tokens: tokens per batch, a multiple of the longest row; None leaves it to the run.
        cp: context-parallel ranks that share a batch, by the length of its rows; (1,) is none.
        packs_members: True if `plan_window` places the documents of a group one by one, in rows of
            one batch. Then `WindowRequest.members` has their lengths.
        revision: of the algorithm; another one where plans differ.
    """

    seq_lens: tuple[int, ...]
    overflow: Overflow = "split"
    inserts_eos: bool = False
    mask_repeated: bool = False
    keeps_order: bool = False
    keeps_whole: bool = False
    balance: Literal["attention", "patches"] | None = None
    capacity: Mapping[str, int] = MappingProxyType({})
    weights: tuple[str, ...] = ()
    batch_tokens: int | None = None
    cp: Sequence[int] = (1,)
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
            final: True if nothing comes after these documents.
            seed: of every random decision; the same arguments give the same plan anywhere.

        Raises:
            PlanError: a document is longer than a row and `overflow` is "error".
        """

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """JSON-able identity for the fingerprint: class, parameters, algorithm revision."""

    def _described(self, *settings: str) -> dict[str, Any]:
        """What `describe` of streampack's packers begins with: class, revision, these settings."""
        values = {name: getattr(self, name) for name in settings}
        return {"kind": type(self).__name__, "revision": self.revision, **values}

    def plan_window(self, request: WindowRequest) -> Selection:
        """Plan what a lane's window holds, and choose the rows that go this round.

        It must be a pure function of the request, as `plan` is of its arguments. By default it
        plans everything and chooses with `fullest_rows`.
        """
        request = full_rows_first(request)
        given = {"weights": request.weights} if self.weights else {}
        plan = self.plan(request.lengths, final=request.final, seed=request.seed, **given)
        if not isinstance(plan, Plan):
            raise PlanError(
                f"{type(self).__name__}.plan returned {plan!r:.80}.",
                remedy="Return a streampack.packing.Plan.",
            )
        return fullest_rows(plan, request)

    def fits(self, sizes: DocumentSizes, batch_tokens: int) -> NDArray[np.bool_]:
        """(N,) which documents of these sizes a row can hold whole."""
        lengths = sizes.lengths
        fits = lengths <= self.seq_lens[-1]
        for name, most in self.capacity.items():
            fits &= sizes.weights[name] <= most
        return fits

    @property
    def max_tokens_per_row(self) -> int:
        """Tokens that one row may use up at most, with those it drops; by default it drops none."""
        return self.seq_lens[-1]

    def seq_len_at(self, step: int, *, schedule_seed: int) -> int:
        """Tokens per row of batch number `step` of every lane; by default the longest row's."""
        return self.seq_lens[-1]

    def rows_per_batch(self, seq_len: NDArray[np.int64], batch_tokens: int) -> NDArray[np.int64]:
        """(B,) rows of batches whose rows have these lengths (B,); by default equal tokens."""
        return batch_tokens // seq_len

    def batch_share(self, count: int, *, schedule_seed: int) -> float:
        """Slots of a lane's first `count` batches, as a share of ``batch_tokens`` each."""
        return 1.0

    def leaves(self) -> dict[str, Any]:
        """Values by the names of the leaves that a run with it uses; see `streampack.leaves`."""
        named = {
            "balance": self.balance,
            "weights": self.weights or None,
            "members": self.packs_members or None,
        }
        return {name: value for name, value in named.items() if value is not None}

    @property
    def needs_sample(self) -> bool:
        """True if the packer has to measure a sample of the corpus before a run."""
        return False

    def with_sample(self, lengths: NDArray[np.int64]) -> Packer:
        """The same packer with what it measures on a sample of document lengths (N,)."""
        return self

    def with_saved(self, description: Mapping[str, Any]) -> Packer:
        """The same packer with what a saved run had measured, if it can use that.

        Args:
            description: what `describe` of the saved run's packer gave.
        """
        return self


def require_packer(packer: object) -> Packer:
    """`packer`; raises `ConfigError` unless it is a `Packer` with what every packer declares."""
    if not isinstance(packer, Packer):
        raise ConfigError(
            f"packer is {packer!r:.80}.",
            "Pass BestFitDecreasing(seq_len=2048) or another packer of streampack.packing.",
            setting="packer",
        )
    name, sizes = type(packer).__name__, getattr(packer, "seq_lens", None)
    whole = isinstance(sizes, tuple) and all(is_whole(n) and 2 <= n < 1 << 31 for n in sizes)
    if not whole or not sizes or list(sizes) != sorted(set(sizes)):
        raise ConfigError(
            f"{name}.seq_lens is {sizes!r:.80}.",
            f"Give {name} a tuple of row lengths in tokens, ascending: seq_lens = (2048,).",
            setting="seq_lens",
        )
    if packer.overflow not in OVERFLOWS:
        raise ConfigError(
            f"{name}.overflow is {packer.overflow!r:.80}.",
            f"Give {name} one of {', '.join(OVERFLOWS)}.",
            setting="overflow",
        )
    return packer
