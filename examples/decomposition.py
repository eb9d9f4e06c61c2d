"""Decomposition, a packer of your own: `python examples/decomposition.py`.

Every document is cut into pieces, each as long as a power of two and with a row of its own. The
packer changes the documents of a request into pieces, has `Buckets` pack these, and changes the
plan back. docs/extending.md describes the contract of packers. Runs on a CPU in seconds.

Steps:
  1. A document is as many pieces of the largest bucket as it fills. The rest is divided into the
     powers of two that add up to it, down to the smallest bucket. Less than that is its tail.
  2. A piece is a row of its own, of the bucket that it fills to the last slot. Tails of several
     documents share rows of the smallest bucket, the longest that fits first; or they are dropped
     (`keep_tails`).
  3. Online the schedule of `Buckets` selects the bucket of each batch, and its rows are drawn at
     random from the pieces of that length in the window. Where the window has none, shorter pieces
     share a row; where these fill less than half of it, a part of a longer one does.
  4. The pieces of a document are cut from it one after the other, in the order in which their rows
     go.

Cost: as `Buckets` over the pieces. Keeps every token, unless tails are
dropped; cuts nearly every document; pads some rows of tails.

Source: H. Pouransari et al., "Dataset Decomposition: Faster LLM Training with Variable Sequence
Length Curriculum" (2024). Its released code cuts from 8,192 down to 256 and drops tails; it
decomposes a corpus before training, so that any mixture of lengths can be drawn at any time, where
a lane has only its window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack import Buckets, PackedDataset, PackedLoader, Topology
from streampack.documents import offsets_of
from streampack.errors import ConfigError
from streampack.packing import Curriculum, Packer, Plan, Selection, WindowRequest, check_plan


@dataclass(frozen=True, kw_only=True)
class Decomposition(Packer):
    """Rows of several lengths, each a piece of one document; batches after a schedule.

    Args:
        seq_lens: the buckets, tokens per row: powers of two, each twice the one before.
        shares: share of the tokens (so of the batches) that each bucket gets: numbers, or a
            `Curriculum` that changes them over training. None: measured on a sample of the corpus
            when a dataset starts, and kept in its state.
        warm_up: rotations over which the longer buckets come in one after another.
        keep_tails: tails of documents, shorter than the smallest bucket, share rows of it; False
            drops them, and whole documents that are shorter.
    """

    seq_lens: tuple[int, ...] = (256, 512, 1024, 2048, 4096, 8192)
    shares: Curriculum | Sequence[float] | None = None
    warm_up: int = 0
    keep_tails: bool = True

    measures = "shares"  # by `with_sample`

    def __post_init__(self) -> None:
        buckets = self._buckets  # checks them
        if not powers_of_two(buckets.seq_lens):
            raise ConfigError(
                f"seq_lens is {self.seq_lens!r}.",
                "Pass for example seq_lens=(256, 512, 1024, 2048), or use Buckets.",
                setting="seq_lens",
            )
        for name in ("seq_lens", "shares", "warm_up"):
            object.__setattr__(self, name, getattr(buckets, name))

    @property
    def _buckets(self) -> Buckets:
        """The packer of pieces, which cuts one only to fill a row that is not half full."""
        return Buckets(
            seq_lens=self.seq_lens, padding_threshold=0.5, shares=self.shares, warm_up=self.warm_up
        )

    def with_sample(self, lengths: NDArray[np.int64]) -> Decomposition:
        """The same with the token shares that the pieces of documents of these lengths (N,) have.

        Raises:
            ConfigError: there are none.
        """
        sizes = self._pieces(lengths).sizes
        return replace(self, shares=self._buckets.with_sample(sizes).shares)

    def plan(self, lengths: NDArray[np.int64], *, final: bool, seed: int) -> Plan:
        """A row for every piece, the longest first, then rows of tails.

        Neither `final` nor `seed` changes anything, for nothing here is random.
        """
        pieces = self._pieces(lengths)
        return pieces.joined(self._buckets.plan(pieces.sizes, final=final, seed=seed))

    def plan_window(self, request: WindowRequest) -> Selection:
        """Rows for the lane's next batches, each of the bucket that the schedule gives it.

        Raises:
            ConfigError: the shares are neither given nor measured.
        """
        held = np.minimum(request.held, request.lengths)
        pieces = self._pieces(held, in_part=request.in_part)
        some = replace(
            request,
            lengths=pieces.sizes,
            remaining=pieces.sizes,
            held=pieces.sizes,
            delivered=np.zeros_like(pieces.sizes),
            rounds_left=request.rounds_left[pieces.document],
        )
        found = self._buckets.plan_window(some)
        return Selection(pieces.joined(found.plan), found.rows, found.batches)

    def seq_len_at(self, step: int, *, schedule_seed: int) -> int:
        """Tokens per row of batch number `step` of every lane, by the schedule."""
        return self._buckets.seq_len_at(step, schedule_seed=schedule_seed)

    def describe(self) -> dict[str, Any]:
        """Class, parameters and algorithm revision."""
        buckets = self._buckets.describe()
        return {
            "kind": "Decomposition",
            "revision": 2,
            "keep_tails": self.keep_tails,
            **{name: buckets[name] for name in ("seq_lens", "shares", "warm_up")},
        }

    def _pieces(self, lengths: NDArray[np.int64], *, in_part: bool = False) -> _Pieces:
        """The pieces of documents of these lengths (N,).

        With `in_part` more follows of the last one, so only pieces of the largest bucket are known.
        """
        smallest, largest = self.seq_lens[0], self.seq_lens[-1]
        sizes = np.array([*reversed(self.seq_lens), 0], dtype=np.int64)
        counts = np.empty((len(lengths), len(sizes)), dtype=np.int64)
        counts[:, 0] = lengths // largest
        counts[:, 1:-1] = (lengths[:, None] & sizes[1:-1]) > 0
        tails = lengths % smallest
        counts[:, -1] = (tails > 0) & self.keep_tails
        if in_part:
            counts[-1, 1:] = tails[-1] = 0
        document, kind = np.divmod(
            np.repeat(np.arange(counts.size, dtype=np.int64), counts.ravel()), len(sizes)
        )
        sizes = np.where(sizes[kind] > 0, sizes[kind], tails[document])
        return _Pieces(document, sizes, np.zeros_like(tails) if self.keep_tails else tails)


def powers_of_two(seq_lens: tuple[int, ...]) -> bool:
    """True if `seq_lens` are powers of two, each twice the one before."""
    smallest = seq_lens[0]
    doubled = tuple(smallest << i for i in range(len(seq_lens)))
    return smallest & (smallest - 1) == 0 and seq_lens == doubled


@dataclass(frozen=True, slots=True, eq=False)
class _Pieces:
    """Pieces of N documents.

    Attributes:
        document: (P,) int64, ascending; sizes: (P,) int64, tokens of each piece.
        lost: (N,) int64, tokens at the end of each document that are no piece.
    """

    document: NDArray[np.int64]
    sizes: NDArray[np.int64]
    lost: NDArray[np.int64]

    def joined(self, plan: Plan) -> Plan:
        """A plan over the pieces as one over their documents.

        Each document is cut in the order of the rows, so its tail holds the tokens without a row.
        These are the dropped ones, or stay in the window.
        """
        document = self.document[plan.document]
        size = plan.stop - plan.start
        order = np.argsort(document, kind="stable")
        ends = np.cumsum(size[order])
        counts = np.bincount(document, minlength=len(self.lost))
        before = np.concatenate([[0], ends])[offsets_of(counts)[:-1]]
        stop = np.empty_like(size)
        stop[order] = ends - before[document[order]]
        left = np.bincount(self.document, self.sizes, len(self.lost)).astype(np.int64)
        np.subtract.at(left, document, size)
        return replace(
            plan,
            document=document,
            start=stop - size,
            stop=stop,
            dropped=np.where(left == 0, self.lost, 0),
        )


def main() -> None:
    """Check a plan of some documents, then pack them and say that all tokens came out."""
    rng = np.random.default_rng(0)
    lengths = np.minimum(rng.lognormal(4.5, 1.0, 400).astype(np.int64) + 1, 2000)
    packer = Decomposition(seq_lens=(32, 64, 128, 256))
    check_plan(packer.plan(lengths, final=True, seed=0), lengths)
    documents = [rng.integers(1, 100, n).astype(np.uint16) for n in lengths]
    dataset = PackedDataset(documents, packer=packer, batch_size=4, lanes=1, topology=Topology())
    kept, sizes = 0, set()
    for batch in PackedLoader(dataset):
        kept += batch.num_tokens
        sizes.add(batch.seq_len)
    print(f"{kept} of {lengths.sum()} tokens in rows of {', '.join(map(str, sorted(sizes)))}")


if __name__ == "__main__":
    main()
