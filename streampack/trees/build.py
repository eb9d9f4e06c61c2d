"""Which slots the sequences of a record share: a tree of runs of tokens, depth first.

Steps, for each group of sequences:
  1. Each sequence walks down the tree of those before it, token by token. Where it goes on in
     another way it becomes a branch; a run in the middle of which that happens is divided. So every
     token is compared once, and at a branch the first tokens of the others (a radix tree: D. R.
     Morrison, "PATRICIA", Journal of the ACM 15, 1968).
  2. Runs get their slots depth first, branches in the order of the sequences that made them.
  3. Each sequence writes its slots, from its end up to the root.

The number of a slot in its tree is when a depth-first walk enters it. A slot q has k before it, on
its way from the root, exactly if k <= q < tout[k], the first slot that is not below k.

Cost: two compiled passes over the tokens; no Python per token or sequence.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel
from streampack.documents.blocks import Documents, Members

#: The token field of a tree's sequences in which their slots are kept.
SLOT = "tree slot"


class Trees(NamedTuple):
    """G groups of sequences as trees; S sequences with N tokens in all.

    Attributes:
        tokens: (T,) ids of the slots, tree after tree.
        offsets: (G + 1,) int64, where each tree begins in `tokens`.
        slot: (N,) int32, the slot of each token of the sequences, from 0 in every tree.
        shared: (S,) int64, tokens that a sequence begins with alike to one before it in its group.
    """

    tokens: NDArray[Any]
    offsets: NDArray[np.int64]
    slot: NDArray[np.int32]
    shared: NDArray[np.int64]


def plant(tokens: NDArray[Any], ends: NDArray[np.int64], groups: NDArray[np.int64]) -> Trees:
    """The trees of groups of sequences that lie side by side.

    >>> ids = np.array([7, 7, 1, 7, 7, 2, 7, 7], np.uint16)
    >>> trees = plant(ids, np.array([0, 3, 6, 8]), np.array([0, 3]))
    >>> trees.tokens.tolist(), trees.slot.tolist()
    ([7, 7, 1, 2], [0, 1, 2, 0, 1, 3, 0, 1])
    >>> trees.shared.tolist()
    [0, 2, 2]

    Args:
        tokens: ids of the sequences; sequence i is ``tokens[ends[i]:ends[i + 1]]``, and may be
            empty.
        ends: (S + 1,) int64.
        groups: (G + 1,) int64 into `ends`, where each group begins.
    """
    held = tokens[ends[0] : ends[-1]]
    out = np.empty(len(held), dtype=tokens.dtype)
    slot = np.empty(len(held), dtype=np.int32)
    shared = np.empty(len(ends) - 1, dtype=np.int64)
    offsets = np.zeros(len(groups), dtype=np.int64)
    most = 2 * int(np.diff(groups).max(initial=0)) + 1
    _plant(held, ends - ends[0], groups, np.empty((most, 8), np.int64), out, offsets, slot, shared)
    return Trees(out[: offsets[-1]], offsets, slot, shared)


def planted(documents: Documents) -> Documents:
    """A block of groups as one of trees: its tokens are those of the slots.

    Its `members` are the sequences, which have their slots as the token field `SLOT`.
    """
    members = documents.members
    assert members is not None
    sequences, groups = members.documents, members.offsets
    low, high = int(groups[0]), int(groups[-1])
    sequences = sequences[low:high]
    ends = sequences.offsets
    trees = plant(sequences.tokens, ends, groups - low)
    begin = int(ends[0])
    held = slice(begin, int(ends[-1]))
    sequences = Documents(
        sequences.tokens[held],
        ends - begin,
        sequences.origin,
        None if sequences.loss_mask is None else sequences.loss_mask[held],
        {**{name: own[held] for name, own in sequences.token_fields.items()}, SLOT: trees.slot},
        sequences.document_fields,
    )
    return Documents(
        trees.tokens,
        trees.offsets,
        documents.origin,
        members=Members(sequences, groups - low, planted=True),
    )


# Columns of a run of tokens: where they lie in the sequences, the depths at which it begins and
# ends, its first branch, the next branch beside it, the run it follows, its first slot.
_AT, _START, _STOP, _CHILD, _NEXT, _PARENT, _SLOT = range(7)


@kernel
def _plant(
    tokens: NDArray[Any],
    ends: NDArray[np.int64],
    groups: NDArray[np.int64],
    runs: NDArray[np.int64],
    out: NDArray[Any],
    offsets: NDArray[np.int64],
    slot: NDArray[np.int32],
    shared: NDArray[np.int64],
) -> None:
    """See `plant`; `runs` is room for the runs of the largest group, run 0 is an empty root."""
    for g in range(len(groups) - 1):
        runs[0] = np.array([0, 0, 0, -1, -1, -1, 0, 0])
        count = 1
        leaf = np.empty(groups[g + 1] - groups[g], dtype=np.int64)
        for s in range(groups[g], groups[g + 1]):
            begin, length = ends[s], ends[s + 1] - ends[s]
            leaf[s - groups[g]], shared[s], count = _walk(tokens, begin, length, runs, count)
        base = offsets[g]
        offsets[g + 1] = base + _number(tokens, runs, out[base:])
        for s in range(groups[g], groups[g + 1]):
            begin, length = ends[s], ends[s + 1] - ends[s]
            run = leaf[s - groups[g]]
            while run > 0:
                start = runs[run, _START]
                first = runs[run, _SLOT]
                target = slot[begin + start : begin + max(min(runs[run, _STOP], length), start)]
                for k in range(len(target)):
                    target[k] = first + k
                run = runs[run, _PARENT]


@kernel
def _walk(
    tokens: NDArray[Any], begin: int, length: int, runs: NDArray[np.int64], count: int
) -> tuple[int, int, int]:
    """Where a sequence ends in the tree, how much of it was there before, and the runs then."""
    run = 0
    depth = 0
    while depth < length:
        before = -1
        child = runs[run, _CHILD]
        while child >= 0 and tokens[runs[child, _AT]] != tokens[begin + depth]:
            before = child
            child = runs[child, _NEXT]
        if child < 0:
            runs[count] = np.array([begin + depth, depth, length, -1, -1, run, 0, 0])
            if before < 0:
                runs[run, _CHILD] = count
            else:
                runs[before, _NEXT] = count
            return count, depth, count + 1
        own = tokens[begin + depth : begin + min(length, runs[child, _STOP])]
        there = tokens[runs[child, _AT] : runs[child, _AT] + len(own)]
        same = 1
        while same < len(own) and own[same] == there[same]:
            same += 1
        depth += same
        if depth < length and depth < runs[child, _STOP]:  # a new run takes its upper part
            runs[count] = runs[child]
            runs[count, _STOP] = depth
            runs[count, _CHILD] = child
            if before < 0:
                runs[run, _CHILD] = count
            else:
                runs[before, _NEXT] = count
            runs[child, _AT] += depth - runs[child, _START]
            runs[child, _START] = depth
            runs[child, _NEXT] = -1
            runs[child, _PARENT] = count
            child = count
            count += 1
        run = child
    return run, length, count


@kernel
def _number(tokens: NDArray[Any], runs: NDArray[np.int64], out: NDArray[Any]) -> int:
    """Give the runs their slots depth first, and the slots their tokens; how many there are."""
    slots = 0
    run = 0
    while run >= 0:
        runs[run, _SLOT] = slots
        size = runs[run, _STOP] - runs[run, _START]
        target = out[slots : slots + size]
        piece = tokens[runs[run, _AT] : runs[run, _AT] + size]
        for k in range(len(target)):
            target[k] = piece[k]
        slots += size
        if runs[run, _CHILD] >= 0:
            run = runs[run, _CHILD]
            continue
        while run >= 0 and runs[run, _NEXT] < 0:
            run = runs[run, _PARENT]
        if run >= 0:
            run = runs[run, _NEXT]
    return slots
