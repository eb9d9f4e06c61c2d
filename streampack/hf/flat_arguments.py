"""Arguments of models of transformers for a batch as one row."""

from __future__ import annotations

from typing import Any

from streampack.forms.attention import static_segments
from streampack.forms.image_columns import images_of


def flat_arguments(
    batch: Any, model: Any = None, *, seq_idx: bool = False, segments: int | None = None
) -> dict[str, Any]:
    """Return the arguments of `hf` without a model.

    Args:
        batch: a batch of rows.
        model: the model that counts the positions of films; they need it.
        seq_idx: as in `hf`.
        segments: as in `hf`.
    """
    counts: dict[str, Any] = {}
    if batch._step_items is not None or not batch.num_loss_tokens:
        counts["num_items_in_batch"] = batch.num_items_in_batch * batch.cp_size
    if seq_idx:
        counts["seq_idx"] = batch.seq_idx
    cu_seqlens, longest = static_segments(batch, segments)
    arguments = {
        **counts,
        "input_ids": batch.input_ids.view(1, -1),
        "position_ids": batch.position_ids.view(1, -1),
        "labels": batch.labels.view(1, -1),
        "cu_seq_lens_q": cu_seqlens,
        "cu_seq_lens_k": cu_seqlens,
        "max_length_q": longest,
        "max_length_k": longest,
        "use_cache": False,
    }
    if images_of(batch) is None:
        return arguments
    from streampack.images.model_arguments import with_media

    return with_media(arguments, batch, model)
