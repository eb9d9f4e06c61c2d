"""Assign slots to the sequences of a record: a tree of token runs, depth first.

Steps, for each group of sequences:
  1. Each sequence walks down the tree of the earlier sequences, token by token. At the first token
     that differs it becomes a branch; a run that is left in its middle is divided. So every token
     is compared once, plus the first tokens of the branches at each fork (a radix tree: D. R.
     Morrison, "PATRICIA", Journal of the ACM 15, 1968).
  2. Runs get their slots depth first, branches in the order of the sequences that added them.
  3. Each sequence writes its slots, from its end up to the root.

Slots are numbered in the order in which a depth-first walk enters them. Slot k is an ancestor of
slot q exactly if k <= q < tout[k], the first slot outside of k's subtree.

Cost: two compiled passes over the tokens; no Python per token or sequence.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel
from streampack.documents.blocks import Documents, Members
from streampack.trees.slot_fields import slot_fields

#: Token field of a tree's sequences that holds their slots.
SLOT = "tree slot"


class Trees(NamedTuple):
    """G groups of sequences as trees; S sequences with N tokens in all.

    Attributes:
        tokens: (T,) ids of the slots, tree after tree.
        offsets: (G + 1,) int64 offsets of the trees into `tokens`.
        slot: (N,) int32, the slot of each token of the sequences, from 0 in every tree.
        shared: (S,) int64, length of the longest prefix that a sequence shares with an earlier one
            of its group.
    """

    tokens: NDArray[Any]
    offsets: NDArray[np.int64]
    slot: NDArray[np.int32]
    shared: NDArray[np.int64]


def plant(tokens: NDArray[Any], ends: NDArray[np.int64], groups: NDArray[np.int64]) -> Trees:
    """Build the trees of groups of adjacent sequences.

    >>> ids = np.array([7, 7, 1, 7, 7, 2, 7, 7], np.uint16)
    >>> trees = plant(ids, np.array([0, 3, 6, 8]), np.array([0, 3]))
    >>> trees.tokens.tolist(), trees.slot.tolist()
    ([7, 7, 1, 2], [0, 1, 2, 0, 1, 3, 0, 1])
    >>> trees.shared.tolist()
    [0, 2, 2]

    Args:
        tokens: ids of the sequences; sequence i is ``tokens[ends[i]:ends[i + 1]]``, and may be
            empty.
        ends: (S + 1,) int64 offsets of the sequences into `tokens`.
        groups: (G + 1,) int64 offsets of the groups into the sequences.
    """
    held = tokens[ends[0] : ends[-1]]
    out = np.empty(len(held), dtype=tokens.dtype)
    slot = np.empty(len(held), dtype=np.int32)
    shared = np.empty(len(ends) - 1, dtype=np.int64)
    offsets = np.zeros(len(groups), dtype=np.int64)
    most = 2 * int(np.diff(groups).max(initial=0)) + 1
    _plant(held, ends - ends[0], groups, np.empty((most, 8), np.int64), out, offsets, slot, shared)
    return Trees(out[: offsets[-1]], offsets, slot, shared)


def planted(documents: Documents) -> tuple[Documents, dict[int, str]]:
    """Convert a block of groups to a block of trees, with one token per slot.

    Its `members` are the sequences, with their slots in the token field `SLOT`.

    Returns:
        The trees, and the fault of each sequence with fields that disagree; see `slot_fields`.
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
        {name: values[held] for name, values in sequences.token_fields.items()},
        sequences.document_fields,
    )
    in_group = np.diff(sequences.offsets[groups - low])
    slot = trees.slot + np.repeat(trees.offsets[:-1], in_group)
    by_slot, faults = slot_fields(sequences, slot, len(trees.tokens))
    by_token = {
        name: values for name, values in sequences.token_fields.items() if name not in by_slot
    }
    sequences = replace(sequences, token_fields={**by_token, SLOT: trees.slot})
    block = Documents(
        trees.tokens,
        trees.offsets,
        documents.origin,
        token_fields=by_slot,
        members=Members(sequences, groups - low, in_slots=True),
    )
    return block, faults


# Columns of a run of tokens: offset in the sequences, depths of its begin and end, first branch,
# next sibling, parent run, first slot.
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
    """Compiled part of `plant`; `runs` has room for the largest group, run 0 is an empty root."""
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
    """Add a sequence; return its last run, the tokens already in the tree, and the run count."""
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
        branch = tokens[begin + depth : begin + min(length, runs[child, _STOP])]
        existing = tokens[runs[child, _AT] : runs[child, _AT] + len(branch)]
        same = 1
        while same < len(branch) and branch[same] == existing[same]:
            same += 1
        depth += same
        if depth < length and depth < runs[child, _STOP]:  # divide: a new run takes the upper part
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
    """Assign slots to runs depth first and write their tokens to `out`; return the slot count."""
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
