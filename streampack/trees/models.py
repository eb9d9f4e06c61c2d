"""Arguments with which a model of transformers computes trees, after testing that it does.

A small tree is run through the model: branches must not change one another's outputs, and every
sequence must have the outputs that it has alone. Layers that mix along the row fail this test,
whatever their class.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from streampack.errors import ConfigError
from streampack.hf.arguments import (
    TOLERANCE,
    TOLERANCE_HALF,
    by_itself,
    evaluated,
    explain_mismatch,
)
from streampack.hf.attention import (
    adds_router_loss,
    arguments_by,
    dtype_of,
    rows_of,
    unwrapped,
    usual_ids,
)
from streampack.hf.isolation import check_isolation, without_loss
from streampack.hf.slot_outputs import largest_movement, of_slots
from streampack.trees.columns import TreeColumns
from streampack.window.packed_rows import PackedRows

if TYPE_CHECKING:
    from streampack.trees.batch import TreeBatch

#: Lengths of the tree's runs as shares of a row, and the runs of each sequence. The tree has two
#: levels, and one sequence is a prefix of the others.
_RUNS = (0.3, 0.2, 0.1, 0.15, 0.1)
_SEQUENCES = ((0, 1), (0, 2, 3), (0, 2, 4), (0,))


def arguments_for(model: Any, batch: TreeBatch) -> dict[str, Any]:
    """Return the keyword arguments for `model`; see `TreeBatch.hf`.

    Raises:
        ConfigError: the model does not compute trees.
    """
    reason = explain_mismatch(model, batch, "mask", _tried)
    if reason is None and adds_router_loss(model):
        from streampack.hf.routers import refused

        raise refused(model, "takes the mask of trees for one of padding")
    if reason is None:
        return arguments_by(model, batch, "mask")
    raise ConfigError(
        f"{type(unwrapped(model)).__name__} does not compute trees by a mask ({reason}).",
        'Use layout="documents", or a model with attention layers only and '
        'attn_implementation="sdpa" or "eager".',
        setting="model",
    )


def _tried(model: nn.Module, batch: TreeBatch, way: str, device: torch.device) -> str | None:
    if batch.seq_len < 10:
        return f"rows of {batch.seq_len} slots are too short to find that out"
    trees = partial(_trees, batch.seq_len, usual_ids(model))
    two = type(batch)(trees(min(batch.rows, 2))).to(device)

    def call(batch: Any) -> Any:
        return model(**without_loss(arguments_by(model, batch, way), model))

    isolation = check_isolation(model, two, call=call)
    if not isolation:
        where = f" in {isolation.layer}" if isolation.layer else ""
        return f"branches move one another{where}"
    tolerance = TOLERANCE_HALF if dtype_of(model).itemsize == 2 else TOLERANCE
    with evaluated(model, device):
        outputs = of_slots(call(two), two.input_ids.numel())
        for number in range(two.num_documents):
            slots = two.slot[two.sequence_ids == number]
            alone = by_itself(model, two.input_ids.view(-1)[slots], batch.seq_len)
            if (
                not float(largest_movement(outputs[slots], alone).max())
                <= tolerance * isolation.context
            ):
                return "sequences are not as they are by themselves"
        if batch.rows > 2:  # raises if the whole batch is too large for the model
            call(type(batch)(trees(batch.rows)).to(device))
    return None


def _trees(seq_len: int, ids: Any, rows: int) -> PackedRows:
    """Make rows with one tree each, padded to `seq_len`."""
    sizes = [max(int(share * seq_len), 1) for share in _RUNS]
    starts = np.cumsum([0, *sizes])
    runs = [np.arange(a, b) for a, b in pairwise(starts.tolist())]
    one = [np.concatenate([runs[i] for i in sequence]) for sequence in _SEQUENCES]
    sequences = [slots + row * seq_len for row in range(rows) for slots in one]
    ends = np.cumsum([0, *map(len, sequences)]).astype(np.int32)
    counted = np.ones(int(ends[-1]), dtype=np.bool_)
    counted[ends[:-1]] = False
    tree = TreeColumns(np.concatenate(sequences).astype(np.int32), ends, counted)
    packed = rows_of([[int(starts[-1])]] * rows, seq_len, ids)
    source_ids = np.zeros(len(sequences), dtype=np.int32)
    return packed._replace(attached={"tree": tree}, source_ids=source_ids)
