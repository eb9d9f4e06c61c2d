"""Mixture-of-experts models of transformers with an auxiliary router loss.

That loss is a mean over all slots that the model gets, so padding would enter it. Where positions
keep documents apart, padding is therefore left out; where every row is one segment, a padding mask
is passed. A model that needs a document mask cannot be served: its auxiliary loss takes that mask
for a padding mask and fails. `router_loss.RouterLoss` computes the loss beside it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from streampack.documents.blocks import ranges_of
from streampack.errors import ConfigError
from streampack.forms.attention import are_padding
from streampack.forms.image_columns import images_of
from streampack.hf.attention import unwrapped

_OF_SLOTS = {"input_ids", "position_ids", "labels", "seq_idx"}


def without_padding(
    model: Any,
    batch: Any,
    way: str,
    arguments: dict[str, Any],
    segments: int | None,
    wrong: str | None,
) -> dict[str, Any]:
    """Return arguments that keep padding out of the auxiliary router loss.

    Args:
        model: a model with an auxiliary loss (`adds_router_loss`).
        batch, way, segments: as in `arguments_by`.
        arguments: its result.
        wrong: why rows of one segment with a padding mask fail, or None.

    Returns:
        Flat arguments with (1, num_tokens) values; or row by row with a padding mask, without rows
        that are padding alone. A batch of padding turns the auxiliary loss off.

    Raises:
        ConfigError: the auxiliary loss would be wrong; the message has the reason.
    """
    if batch._step_batches > 1:
        reason = f"a group of {batch._step_batches} batches would count as often"
        raise refused(model, reason, " and compute its loss by RouterLoss, which counts it once")
    if wrong:
        raise refused(model, f"needs a mask of padding ({wrong})", "")
    if way == "mask":
        reason = "takes the mask that keeps documents apart for one of padding"
        raise refused(model, reason, f" and compute its loss by RouterLoss{_PAD}")
    if images_of(batch) is not None:
        raise refused(model, "would count padding, in which small images may stand")
    if segments is not None and way != "rows":
        raise refused(model, "needs padding to be left out, which segments= does not allow")
    if not batch.num_documents:
        return {**arguments, "output_router_logits": False}
    if batch.num_tokens == batch.rows * batch.seq_len:
        return arguments
    if way == "rows":  # a row of padding is masked entirely, which may give NaN
        rows, of_rows = _filled_rows(batch), {*_OF_SLOTS, "attention_mask"}
        return {name: v[rows] if name in of_rows else v for name, v in arguments.items()}
    return _at_filled_slots(batch, arguments)


_PAD = ", or pack rows of one segment: packer=Pad(seq_len=...)"


def refused(model: Any, because: str, otherwise: str = _PAD) -> ConfigError:
    """Return the error for a model with an auxiliary router loss that would be wrong.

    Args:
        because: predicate of the sentence about the loss.
        otherwise: end of the advice.
    """
    return ConfigError(
        f"{type(unwrapped(model)).__name__} adds the auxiliary loss of its routers "
        f"(output_router_logits=True), which {because}.",
        f"Set output_router_logits=False in its config{otherwise}.",
        setting="model",
    )


def slots_of(batch: Any, shape: tuple[int, ...]) -> Tensor | None:
    """Return the slots, (n,), that logits belong to, or None if their shape does not fit.

    Args:
        batch: the batch for which `without_padding` made the arguments.
        shape: shape of the logits without the vocabulary.
    """
    if shape in {(1, batch.num_tokens), (batch.num_tokens,)}:
        return _filled_slots(batch)[0]
    rows = _filled_rows(batch)
    if shape == (len(rows), batch.seq_len):
        return torch.arange(batch.labels.numel(), device=rows.device).view(batch.labels.shape)[rows]
    return None


def _filled_slots(batch: Any) -> tuple[Tensor, NDArray[np.int64]]:
    """Return the slots that are not padding, (num_tokens,), and the segments' lengths, (n,).

    Slots are on the batch's device and lengths on the host, without a synchronisation.
    """
    ends, filled = batch._runs[0].astype(np.int64), ~are_padding(*batch._runs)
    lengths = np.diff(ends)[filled]
    slots = torch.from_numpy(ranges_of(ends[:-1][filled], lengths))
    return slots.to(batch.device, non_blocking=True), lengths


def _filled_rows(batch: Any) -> Tensor:
    """Return the rows with tokens, (n,) int64 on the batch's device."""
    starts = batch._runs[0][:-1][~are_padding(*batch._runs)]
    rows = torch.from_numpy(np.unique(starts // batch.seq_len))
    return rows.long().to(batch.device, non_blocking=True)


def _at_filled_slots(batch: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Remove padding slots from flat arguments."""
    slots, lengths = _filled_slots(batch)
    ends = torch.from_numpy(np.append(0, np.cumsum(lengths)).astype(np.int32))
    others = {
        **dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k"), ends.to(slots.device)),
        **dict.fromkeys(("max_length_q", "max_length_k"), int(lengths.max())),
    }
    return {
        name: value[..., slots] if name in _OF_SLOTS else others.get(name, value)
        for name, value in arguments.items()
    }
