"""Comparison of packed documents with images to the same documents alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from streampack.forms.image_columns import images_of
from streampack.hf.attention import takes
from streampack.hf.isolation import without_loss
from streampack.hf.slot_outputs import largest_movement, of_slots
from streampack.images.model_arguments import (
    media_of,
    of_images,
    sound_inside,
    types_of,
    with_changed_images,
)


def documents_moved(
    model: Any, batch: Any, call: Callable[[Any], dict[str, Any]], tolerance: float
) -> str | None:
    """Return how packing changes the first or last document with images, or None if it does not.

    Differences between a document's outputs in the batch and alone are measured in units of the
    effect of its images.

    Args:
        model: the model, without gradients and dropout.
        call: function from a batch to the model's arguments.
        tolerance: largest difference, as a share of the effect of the images.
    """
    outputs = of_slots(model(**without_loss(call(batch))), batch.rows * batch.seq_len)
    document = batch.document_ids.view(-1)
    pieces = images_of(batch).pieces
    pieces = pieces[pieces >= 0]
    for number in dict.fromkeys((int(pieces[0]), int(pieces[-1]))):
        at = document == number
        size = int(at.sum())
        other = with_changed_images(batch, at)
        alone, other = (of_slots(model(**_alone(model, b, number)), size) for b in (batch, other))
        scale = float(largest_movement(alone, other).max())
        moved = float(largest_movement(alone, outputs[at]).max())
        if not moved <= tolerance * scale:
            return f"document {number} differs by {moved:.2g}, and its images do {scale:.2g}"
    return None


def _alone(model: Any, batch: Any, number: int) -> dict[str, Any]:
    """Return a model's arguments for one document alone, without positions."""
    places = images_of(batch)
    ids = batch.input_ids.view(-1)[batch.document_ids.view(-1) == number][None]
    # Without a mask some models derive document boundaries from the positions of images.
    mask = torch.ones_like(ids)
    media = media_of(batch, number)
    extra = {**of_images(media, ids, places, model), **sound_inside(media)}
    if takes(model, "mm_token_type_ids"):
        start = int((batch.document_ids.view(-1) == number).int().argmax())
        extra |= types_of(ids, places, start)
    return {"input_ids": ids, "attention_mask": mask, **extra, "use_cache": False}
