"""What a packer is, and what it does with documents longer than a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel
from streampack.errors import ConfigError, PlanError
from streampack.numeric import is_whole
from streampack.packing.plan import Plan

__all__ = [
    "BatchPacker",
    "Online",
    "Overflow",
    "Packer",
    "TailPacker",
    "aligned",
    "checked_lengths",
    "foreseen",
    "limit_lengths",
    "most_per_row",
    "online",
    "require_align",
    "require_atom",
    "require_buckets",
    "require_extra_capacity",
    "require_seq_len",
]

#: Documents longer than a row: "split" into pieces of seq_len, every piece kept; "truncate" to
#: the first seq_len tokens, the rest dropped and counted; "drop" whole and count; "error".
Overflow = Literal["split", "truncate", "drop", "error"]
OVERFLOWS: tuple[Overflow, ...] = ("split", "truncate", "drop", "error")


@dataclass(frozen=True, kw_only=True, slots=True)
class Online:
    """How a window uses a packer's plans: its attribute `online`, if it has one.

    Attributes:
        keep_order: rows go in the order of the plan, which the packer has shuffled by itself.
        best_first: the plan's rows get worse from first to last, and none of them counts as full:
            the first ones go, up to the share that must.
        whole_batches: the packer is told of the oldest tokens that make whole batches, and all of
            its rows go: for plans that put pieces of a document into rows in any order.
        join_short: a row that is not full never goes as it is. Where one would have to, the plan
            is made again with ``final=True``, which leaves one such row at most.
    """

    keep_order: bool = False
    best_first: bool = False
    whole_batches: bool = False
    join_short: bool = False


def online(packer: Packer) -> Online:
    """How a window uses this packer's plans."""
    said = getattr(packer, "online", None)
    return said if isinstance(said, Online) else Online()


def foreseen(packer: Packer, remaining: int, held: int) -> int:
    """Length a packer is told of a document that the window holds in part.

    Args:
        packer: asked by its method ``foresee(remaining, held)``, if it has one.
        remaining: tokens of the document that are not delivered.
        held: how many of them, less than all, the window holds; a whole number of rows unless the
            packer repeats tokens.

    Returns:
        A length above `held`, such that cuts inside the held part fall where they fall for the
        whole document, and no other document is put in a row with tokens that are not here yet.
        By default two whole rows more than is held.
    """
    foresee = getattr(packer, "foresee", None)
    return int(foresee(remaining, held)) if foresee else held + 2 * packer.seq_lens[-1]


def most_per_row(packer: Packer) -> int:
    """Tokens that one row may use up at most, dropped ones included.

    The packer's attribute `most_per_row`, if it has one; by default no row drops anything.
    """
    return int(getattr(packer, "most_per_row", packer.seq_lens[-1]))


@runtime_checkable
class Packer(Protocol):
    """A pure function from document lengths to a plan.

    Beyond what is listed, a packer may have `online` (see `Online`), ``foresee`` (see `foreseen`),
    `most_per_row` (see the function) and `mask_repeated`, True if tokens repeated from an earlier
    row do not count in the loss.
    """

    @property
    def seq_lens(self) -> tuple[int, ...]:
        """Row lengths the plans may use, in tokens, ascending."""
        ...

    @property
    def overflow(self) -> Overflow:
        """What happens to documents longer than a row."""
        ...

    @property
    def carries(self) -> bool:
        """True if a row that is not full may go back to the window to be packed better later."""
        ...

    @property
    def inserts_eos(self) -> bool:
        """True if plans add EOS tokens at cuts, so that an EOS id is needed."""
        ...

    def plan(self, lengths: NDArray[np.int64], *, final: bool, seed: int) -> Plan:
        """Pack documents of these lengths (N,).

        Args:
            lengths: (N,) int64, tokens per document, in order of arrival.
            final: True if nothing comes after these documents.
            seed: of every random decision; the same arguments give the same plan anywhere.

        Raises:
            PlanError: a document is longer than a row and `overflow` is "error".
        """
        ...

    def describe(self) -> dict[str, Any]:
        """JSON-able identity for the fingerprint: class, parameters, algorithm revision."""
        ...


@runtime_checkable
class BatchPacker(Packer, Protocol):
    """A packer of several row lengths, which plans the batches of a lane rather than its rows."""

    def plan_batches(
        self,
        lengths: NDArray[np.int64],
        *,
        must_go: NDArray[np.bool_],
        batch_tokens: int,
        least_tokens: int,
        rotation: int,
        schedule_seed: int,
        seed: int,
    ) -> tuple[Plan, NDArray[np.int64]]:
        """Rows for the next batches of a lane, each batch of one row length.

        Args:
            lengths: (N,) int64, tokens per document in the window, in order of arrival.
            must_go: (N,) bool, documents that may not stay; all of them at the end of a run.
            batch_tokens: tokens per batch; a batch has ``batch_tokens // seq_len`` rows.
            least_tokens: as many batches are made as have room for this many tokens (at least one,
                and not more than the documents fill), and more only for documents that must go.
            rotation: of the first batch: how many batches the lane has given before.
            schedule_seed: with the rotation it fixes the row length, the same in all lanes.
            seed: of every other random decision.

        Returns:
            A plan of these rows alone (what it does not place stays in the window; what it places
            of a document is its head), and (B + 1,) int64, where each batch begins in its rows. A
            batch is never empty, and has fewer rows than it has room for only where no documents
            are left.
        """
        ...

    def seq_len_at(self, rotation: int, *, schedule_seed: int) -> int:
        """Tokens per row of every lane's batch number `rotation`."""
        ...


@runtime_checkable
class TailPacker(Packer, Protocol):
    """A packer whose cuts in the tail of a document depend on how much of it has gone."""

    def plan_tails(
        self,
        lengths: NDArray[np.int64],
        delivered: NDArray[np.int64],
        *,
        final: bool,
        seed: int,
    ) -> Plan:
        """As `plan`, of what is left of each document.

        Args:
            lengths: (N,) int64, tokens that are left, in order of arrival.
            delivered: (N,) int64, tokens of each document that went in earlier plans.
            final, seed: as in `plan`.
        """
        ...


def require_seq_len(seq_len: int, overflow: str) -> int:
    """`seq_len` as a plain int; raises `ConfigError` unless these settings make sense."""
    if not is_whole(seq_len) or not 2 <= seq_len < 1 << 31:
        raise ConfigError(
            f"seq_len is {seq_len!r}.",
            "A row needs at least 2 tokens, and its length must fit in 31 bits.",
            "Pass the model's context length, for example seq_len=2048.",
        )
    if overflow not in OVERFLOWS:
        raise ConfigError(
            f"overflow is {overflow!r}.",
            "It decides what happens to documents longer than a row.",
            f"Use one of {', '.join(OVERFLOWS)}.",
        )
    return int(seq_len)


def require_buckets(seq_lens: Sequence[int]) -> tuple[int, ...]:
    """`seq_lens` as a tuple; raises `ConfigError` unless they ascend."""
    sizes = tuple(seq_lens) if isinstance(seq_lens, Sequence) else ()
    sizes = tuple(require_seq_len(size, "split") for size in sizes)
    if not sizes or list(sizes) != sorted(set(sizes)):
        raise ConfigError(
            f"seq_lens is {seq_lens!r}.",
            "Buckets must be given, each once, shortest first.",
            "Use for example seq_lens=(2048, 4096, 8192, 16384).",
        )
    return sizes


def require_atom(atom: int | None, seq_len: int) -> int:
    """`atom`, by default `seq_len`; raises `ConfigError` unless one divides the other."""
    if atom is None:
        return seq_len
    fits = is_whole(atom) and 1 <= atom < 1 << 31
    if not fits or (seq_len % atom and atom % seq_len):
        raise ConfigError(
            f"atom is {atom!r} for seq_len {seq_len}.",
            "Atoms are merged or split into rows, so one of the two must divide the other.",
            "Leave it out for one row, or use a quarter, a half, two or four times seq_len.",
        )
    return int(atom)


def require_align(align: int, seq_len: int, extra_capacity: int = 0) -> int:
    """`align`; raises `ConfigError` unless rows of `seq_len` can hold pieces of multiples of it."""
    if not is_whole(align) or align < 1 or seq_len % align or (align > 1 and extra_capacity):
        raise ConfigError(
            f"align is {align!r} for seq_len {seq_len} and extra_capacity {extra_capacity}.",
            "A row is made of whole multiples of it, and nothing lies beyond its end.",
            "Use a divisor of seq_len (2 * cp_size for context parallelism), and no extra "
            "capacity.",
        )
    return int(align)


@kernel
def aligned(lengths: NDArray[np.int64], align: int) -> NDArray[np.int64]:
    """`lengths` with the padding that makes each a multiple of `align`."""
    whole = lengths.copy()
    if align > 1:
        for i in range(len(whole)):
            whole[i] = -(-whole[i] // align) * align
    return whole


def require_extra_capacity(extra_capacity: int, seq_len: int) -> int:
    """`extra_capacity`; raises `ConfigError` unless it is a number of tokens below a row's."""
    if not is_whole(extra_capacity) or not 0 <= extra_capacity < seq_len:
        raise ConfigError(
            f"extra_capacity is {extra_capacity!r} for seq_len {seq_len}.",
            "Tokens beyond seq_len are dropped, so that is at most a row's worth.",
            "The paper uses about seq_len / 41; 0 drops nothing.",
        )
    return int(extra_capacity)


def checked_lengths(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """`lengths` as a contiguous int64 array; raises `PlanError` if one is negative."""
    lengths = np.ascontiguousarray(lengths, dtype=np.int64)
    if lengths.ndim != 1 or (len(lengths) and lengths.min() < 0):
        raise PlanError(
            f"Document lengths have shape {lengths.shape} or a negative value.",
            "They cannot be packed.",
            "Pass one length >= 0 per document.",
        )
    return lengths


def limit_lengths(
    lengths: NDArray[np.int64], seq_len: int, overflow: Overflow
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Apply the overflow policy.

    Returns:
        The lengths that go into rows (N,) int64 (above `seq_len` only under "split"), and the
        tokens dropped per document (N,) int64.

    Raises:
        PlanError: under "error", naming the first document that is too long.
    """
    lengths = checked_lengths(lengths)
    if overflow == "split" or not len(lengths) or lengths.max() <= seq_len:
        return lengths, np.zeros(len(lengths), dtype=np.int64)
    if overflow == "error":
        i = int(np.argmax(lengths > seq_len))
        raise PlanError(
            f"Document {i} has {lengths[i]} tokens, a row has {seq_len}.",
            'overflow="error" forbids that.',
            'Filter such documents out, or use overflow="split", "truncate" or "drop".',
        )
    keep = seq_len if overflow == "truncate" else 0
    kept = np.where(lengths > seq_len, keep, lengths)
    return kept, lengths - kept
