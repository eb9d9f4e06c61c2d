"""with_media: what models of transformers take of a batch with images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from streampack.batch.isolation import largest_movement, of_slots, without_loss
from streampack.batch.tensors import OF_MEDIA
from streampack.media.families import axes_of


def with_media(arguments: dict[str, Any], batch: Any) -> dict[str, Any]:
    """The arguments of `batch.hf()` with those of its images, and positions of the family.

    Args:
        arguments: flat, with `position_ids` (1, T).
        batch: with images.
    """
    made = {**arguments, **batch.media}
    if batch._places.axes:
        made["position_ids"] = _with_axes(arguments["position_ids"], batch)
    return made


def _with_axes(positions: Tensor, batch: Any) -> Tensor:
    """(4, 1, T) int64: the text's positions, by which documents are kept apart, and three axes."""
    _, boundaries, _ = batch._runs
    spans = batch._places.spans
    grids = batch.media["image_grid_thw"].tolist() if len(spans) else []
    axes = np.empty((3, int(boundaries[-1])), dtype=np.int64)
    first = np.searchsorted(spans[:, 0], boundaries)
    for run, (start, stop) in enumerate(zip(boundaries[:-1], boundaries[1:], strict=True)):
        own = slice(first[run], first[run + 1])
        places = [(int(a - start), int(b - start)) for a, b in spans[own]]
        axes[:, start:stop] = axes_of(places, grids[own], int(stop - start))
    return torch.cat([positions[None], torch.from_numpy(axes)[:, None].to(positions.device)])


def in_images(batch: Any) -> Tensor:
    """(T,) True on the slots of images."""
    where = np.zeros(batch.rows * batch.seq_len, dtype=np.bool_)
    for start, stop in batch._places.spans:
        where[start:stop] = True
    return torch.from_numpy(where).to(batch.device)


def with_changed_images(batch: Any, where: Tensor) -> Any:
    """The batch with other pixels in the images that begin at one of these slots (T,)."""
    places = batch._places
    if not len(places.spans):
        return batch
    changed = where[torch.from_numpy(places.spans[:, 0]).to(where.device)]
    entries = torch.from_numpy(places.entries).to(where.device)
    sign = 1 - 2 * changed.repeat_interleave(entries).long()
    pixels = batch.media["pixel_values"]
    pixels = pixels * sign.view(-1, *[1] * (pixels.dim() - 1)).to(pixels.dtype)
    return batch._with(_compact={**batch._tensors, f"{OF_MEDIA}pixel_values": pixels.view(-1)})


def documents_moved(
    model: Any, batch: Any, call: Callable[[Any], dict[str, Any]], tolerance: float
) -> str | None:
    """What is wrong with the first or last document with images in a batch; None if nothing.

    By how much a document's outputs may differ from those by itself is measured by what its images
    do to them.

    Args:
        model: without gradients and dropout.
        call: the arguments of the model for a batch.
        tolerance: largest difference, as a share of that.
    """
    outputs = of_slots(model(**without_loss(call(batch))), batch.rows * batch.seq_len)
    document = batch.document_ids.view(-1)
    pieces = batch._places.pieces
    pieces = pieces[pieces >= 0]
    for number in dict.fromkeys((int(pieces[0]), int(pieces[-1]))):
        at = document == number
        size = int(at.sum())
        alone = of_slots(model(**_alone(batch, number)), size)
        other = of_slots(model(**_alone(with_changed_images(batch, at), number)), size)
        scale = float(largest_movement(alone, other).max())
        moved = float(largest_movement(alone, outputs[at]).max())
        if not moved <= tolerance * scale:
            return f"document {number} differs by {moved:.2g}, and its images do {scale:.2g}"
    return None


def _alone(batch: Any, number: int) -> dict[str, Any]:
    """Arguments of a model for one document by itself; it counts positions itself."""
    places = batch._places
    own = torch.from_numpy(places.pieces == number).to(batch.device)
    rows = own.repeat_interleave(torch.from_numpy(places.entries).to(batch.device))
    ids = batch.input_ids.view(-1)[batch.document_ids.view(-1) == number][None]
    media = {
        name: values[own if len(values) == len(own) and name != "pixel_values" else rows]
        for name, values in batch.media.items()
    }
    return {"input_ids": ids, **media, "use_cache": False}
