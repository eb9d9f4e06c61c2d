"""Arguments of models of transformers for a batch with media, and batches with other media."""

from __future__ import annotations

import inspect
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from streampack.arguments import type_in_words
from streampack.batch.tensors import OF_MEDIA
from streampack.errors import ConfigError
from streampack.forms.image_columns import images_of
from streampack.images.attachments import ROWS
from streampack.images.families import axes_of


def with_media(arguments: dict[str, Any], batch: Any, model: Any = None) -> dict[str, Any]:
    """Add media, and positions as the model's family counts them, to the arguments of `hf`.

    Args:
        arguments: flat arguments with `position_ids` (1, T).
        batch: a batch with media.
        model: the model, which counts the positions of films.

    Raises:
        ConfigError: the batch has films, and there is no model.
    """
    places, ids = images_of(batch), arguments["input_ids"]
    if len(places.blank):
        ids = ids.clone()
        slots, blank_ids = (
            torch.from_numpy(each).to(ids.device) for each in (places.blank, places.blank_ids)
        )
        ids[0, slots] = blank_ids.to(ids.dtype)
    result = {**arguments, "input_ids": ids, **of_images(batch.media, ids, places, model)}
    if places.form.axes:
        if "video" in places.kinds:
            result["position_ids"] = _counted_axes(arguments["position_ids"], batch, model)
        else:
            result["position_ids"] = _with_axes(arguments["position_ids"], batch)
    return result


def of_images(
    media: dict[str, Tensor], ids: Tensor, places: Any, model: Any = None
) -> dict[str, Tensor]:
    """Return the family's arguments for media and ids (1, T)."""
    if model is not None and "input_features" in media:  # not all towers of sounds convert it
        dtype = next((each.dtype for each in model.parameters()), torch.float32)
        media = {**media, "input_features": media["input_features"].to(dtype)}
    result = (
        {name: value[None] for name, value in media.items()} if places.form.batched else dict(media)
    )
    if places.form.types:
        result["token_type_ids"] = (ids == places.image_id).long()
    return result


def _with_axes(positions: Tensor, batch: Any) -> Tensor:
    """Return (4, 1, T) int64: the text's positions, which separate documents, and three axes."""
    _, boundaries, _ = batch._runs
    places = images_of(batch)
    spans = places.spans[places.kinds == "image"]  # positions in sounds are as in texts
    grids = batch.media["image_grid_thw"].tolist() if len(spans) else []
    axes = np.empty((3, int(boundaries[-1])), dtype=np.int64)
    first = np.searchsorted(spans[:, 0], boundaries)
    for run, (start, stop) in enumerate(pairwise(boundaries.tolist())):
        images = slice(first[run], first[run + 1])
        inside = [(int(a - start), int(b - start)) for a, b in spans[images]]
        axes[:, start:stop] = axes_of(inside, grids[images], int(stop - start))
    return torch.cat([positions[None], torch.from_numpy(axes)[:, None].to(positions.device)])


def _counted_axes(positions: Tensor, batch: Any, model: Any) -> Tensor:
    """Return positions as `_with_axes` does, for documents with films, as the model counts them.

    Versions of transformers count the seconds of films in different ways.
    """
    owner = model
    while owner is not None and not hasattr(owner, "get_rope_index"):
        owner = getattr(owner, "module", None) or getattr(owner, "model", None)
    if owner is None:
        raise ConfigError(
            "A batch with films needs the model, which counts their positions, got "
            f"{type_in_words(model)}.",
            "Call batch.hf(model=model) with a model of the processor's family.",
            setting="model",
        )
    _, boundaries, _ = batch._runs
    spans, places = images_of(batch).spans, images_of(batch)
    ids, axes = batch.input_ids.view(1, -1).cpu(), positions.cpu().repeat(3, 1)
    first = np.searchsorted(spans[:, 0], boundaries)
    for run, (start, stop) in enumerate(pairwise(boundaries.tolist())):
        numbers = np.arange(first[run], first[run + 1])
        if len(numbers):
            media = {name: each.cpu() for name, each in _part(batch.media, places, numbers).items()}
            own_ids = ids[:, start:stop]
            held = {
                "input_ids": own_ids,
                "attention_mask": torch.ones_like(own_ids),
                **media,
                **types_of(own_ids, places, start),
                **_of_omni(media),
            }
            taken = inspect.signature(owner.get_rope_index).parameters
            counted, _ = owner.get_rope_index(**{k: v for k, v in held.items() if k in taken})
            if counted.is_floating_point():  # of Qwen3-Omni
                axes = axes.to(counted.dtype)
            axes[:, start:stop] = counted[:, 0]
    return torch.cat([positions[None], axes[:, None].to(positions.device)])


def _of_omni(media: dict[str, Tensor]) -> dict[str, Any]:
    """Return the names under which models of Qwen-Omni count the positions of films with sound."""
    if "video_second_per_grid" not in media:
        return {}
    seconds, inside = {"second_per_grids": media["video_second_per_grid"]}, sound_inside(media)
    lengths = media["feature_attention_mask"].sum(1) if inside else None
    return {**seconds, **inside, "audio_seqlens": lengths}


def sound_inside(media: dict[str, Tensor]) -> dict[str, bool]:
    """Return the argument with which models find the sounds of a document's films, if it has any.

    Args:
        media: the document's media arguments.
    """
    inside = "input_features" in media and "pixel_values_videos" in media
    return {"use_audio_in_video": True} if inside else {}


def types_of(ids: Tensor, places: Any, start: int) -> dict[str, Tensor]:
    """Return `mm_token_type_ids`, by which transformers 5 locates images (1) and films (2).

    Args:
        ids: (1, T) ids of the slots from `start` on.
        places: places of the batch's media.
    """
    is_film = torch.zeros_like(ids, dtype=torch.bool)
    for span in places.spans[places.kinds == "video"]:
        is_film[0, slice(*(max(int(at) - start, 0) for at in span))] = True
    features = (ids == places.image_id) | (ids == places.video_id)
    return {"mm_token_type_ids": features.int() * (1 + is_film.int())}


def media_of(batch: Any, document: int) -> dict[str, Tensor]:
    """Return the media arguments of a batch for a document piece alone."""
    places = images_of(batch)
    return _part(batch.media, places, np.flatnonzero(places.pieces == document))


def _part(media: dict[str, Tensor], places: Any, numbers: NDArray[np.int64]) -> dict[str, Tensor]:
    """Return the arrays of some of the media, by their indices in the batch."""
    result = {}
    for kind in ROWS:
        of_kind = np.flatnonzero(places.kinds == kind)
        if not (is_own := np.isin(of_kind, numbers)).any():
            continue
        in_rows = np.repeat(is_own, places.entries[of_kind])
        for name, values in media.items():
            if kind_of_array(name) == kind:
                chosen, per = is_own, len(in_rows) // len(values)
                if name.endswith("grid_thw"):  # some films have several grids
                    chosen = in_rows[np.cumsum(values.prod(1).cpu().numpy()) - 1]
                elif len(values) > len(is_own):  # values of patches, or of groups of them
                    chosen = in_rows[::per]
                result[name] = values[torch.from_numpy(chosen).to(values.device)]
    return result


def kind_of_array(name: str) -> str:
    """Return the kind of media that an argument belongs to, a key of `ROWS`."""
    if "feature" in name:
        return "audio"
    return "video" if "video" in name or name == "second_per_grid_ts" else "image"


def in_images(batch: Any) -> Tensor:
    """Return a (T,) bool mask, True on image slots and those beside, by which models find them."""
    where = np.zeros(batch.rows * batch.seq_len, dtype=np.bool_)
    for start, stop in images_of(batch).spans:
        where[max(start - 1, 0) : stop + 1] = True
    return torch.from_numpy(where).to(batch.device)


def with_changed_images(batch: Any, where: Tensor) -> Any:
    """Return the batch with negated pixels in the media that begin at a slot of `where`, (T,)."""
    places = images_of(batch)
    if not len(places.spans):
        return batch
    changed = where[torch.from_numpy(places.spans[:, 0]).to(where.device)]
    tensors = {}
    for kind, name in ROWS.items():
        of_kind = torch.from_numpy(places.kinds == kind).to(where.device)
        if of_kind.any():
            entries = torch.from_numpy(places.entries).to(where.device)[of_kind]
            sign = 1 - 2 * changed[of_kind].repeat_interleave(entries).long()
            pixels = batch.media[name]
            pixels = pixels * sign.view(-1, *[1] * (pixels.dim() - 1)).to(pixels.dtype)
            tensors[f"{OF_MEDIA}{name}"] = pixels
    return batch._with(_compact={**batch._tensors, **tensors})
