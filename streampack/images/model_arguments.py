"""Arguments of models of transformers for a batch with images, and batches with other images."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from streampack.batch.tensors import OF_MEDIA
from streampack.forms.image_columns import images_of
from streampack.images.families import axes_of


def with_media(arguments: dict[str, Any], batch: Any) -> dict[str, Any]:
    """Add images, and positions as the model's family counts them, to the arguments of `hf`.

    Args:
        arguments: flat arguments with `position_ids` (1, T).
        batch: a batch with images.
    """
    places, ids = images_of(batch), arguments["input_ids"]
    if len(places.blank):
        ids = ids.clone()
        ids[0, torch.from_numpy(places.blank).to(ids.device)] = places.image_id
    result = {**arguments, "input_ids": ids, **of_images(batch.media, ids, places)}
    if places.form.axes:
        result["position_ids"] = _with_axes(arguments["position_ids"], batch)
    return result


def of_images(media: dict[str, Tensor], ids: Tensor, places: Any) -> dict[str, Tensor]:
    """Return the family's arguments for images and ids (1, T)."""
    result = (
        {name: value[None] for name, value in media.items()} if places.form.batched else dict(media)
    )
    if places.form.types:
        result["token_type_ids"] = (ids == places.image_id).long()
    return result


def _with_axes(positions: Tensor, batch: Any) -> Tensor:
    """Return (4, 1, T) int64: the text's positions, which separate documents, and three axes."""
    _, boundaries, _ = batch._runs
    spans = images_of(batch).spans
    grids = batch.media["image_grid_thw"].tolist() if len(spans) else []
    axes = np.empty((3, int(boundaries[-1])), dtype=np.int64)
    first = np.searchsorted(spans[:, 0], boundaries)
    for run, (start, stop) in enumerate(pairwise(boundaries.tolist())):
        images = slice(first[run], first[run + 1])
        places = [(int(a - start), int(b - start)) for a, b in spans[images]]
        axes[:, start:stop] = axes_of(places, grids[images], int(stop - start))
    return torch.cat([positions[None], torch.from_numpy(axes)[:, None].to(positions.device)])


def in_images(batch: Any) -> Tensor:
    """Return a (T,) bool mask, True on image slots."""
    where = np.zeros(batch.rows * batch.seq_len, dtype=np.bool_)
    for start, stop in images_of(batch).spans:
        where[start:stop] = True
    return torch.from_numpy(where).to(batch.device)


def with_changed_images(batch: Any, where: Tensor) -> Any:
    """Return the batch with negated pixels in the images that begin at a slot of `where`, (T,)."""
    places = images_of(batch)
    if not len(places.spans):
        return batch
    changed = where[torch.from_numpy(places.spans[:, 0]).to(where.device)]
    entries = torch.from_numpy(places.entries).to(where.device)
    sign = 1 - 2 * changed.repeat_interleave(entries).long()
    pixels = batch.media["pixel_values"]
    pixels = pixels * sign.view(-1, *[1] * (pixels.dim() - 1)).to(pixels.dtype)
    return batch._with(_compact={**batch._tensors, f"{OF_MEDIA}pixel_values": pixels})
