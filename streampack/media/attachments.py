"""Attachments: the images of a document, by reference; HeldMedia, BatchMedia: those of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

#: The document field of runs with images: each document's `Attachments`, objects.
MEDIA = "media"

#: An image: its file's bytes, or the path or URL of that; in lists also an image of Pillow.
Reference = Any
#: Of an image, as processors have it, height and width in pixels; of other files what models say.
Size = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Attachments:
    """The A images of a document, in the order of their places.

    Attributes:
        references: A of them.
        sizes: A of them, as the image is seen (after EXIF rotation), or None before they are read.
        starts: (A,) int64, the first token of each in the document; tokens: (A,) int64, how many;
            patches: (A,) int64, their weights. None before they are planned.
        storage: how URLs are reached.
    """

    references: tuple[Reference, ...]
    sizes: tuple[Size, ...] | None = None
    starts: NDArray[np.int64] | None = None
    tokens: NDArray[np.int64] | None = None
    patches: NDArray[np.int64] | None = None
    storage: Any = None

    def __bool__(self) -> bool:
        return bool(self.references)

    @property
    def num_bytes(self) -> int:
        """What the references take."""
        return sum(len(each) for each in self.references if isinstance(each, (bytes, str)))


class HeldMedia(NamedTuple):
    """The images of one document piece of a batch, before they are decoded.

    Attributes:
        piece: number of the document piece; slot: its first one in the batch.
        origin: of the document, of dtype `ORIGIN`.
    """

    piece: int
    slot: int
    origin: Any
    attachments: Attachments


class MediaForm(NamedTuple):
    """How models of a family take images.

    Attributes:
        axes: positions have three axes beside the text's (M-RoPE), by `image_grid_thw`.
        batched: arrays have another first dimension, of batches.
        types: there are `token_type_ids`, 1 on tokens of images.
    """

    axes: bool = False
    batched: bool = False
    types: bool = False


class BatchMedia(NamedTuple):
    """The A images of a batch, decoded and processed.

    Attributes:
        arrays: by name, what the model takes, in the order of the places.
        spans: (A, 2) int64, the first slot of each image's place and the one after its last.
        entries: (A,) int64, rows of the first dimension of `pixel_values` that each image has.
        pieces: (A,) int64, the document piece of each.
        blank: (n,) int64, the slots that get the features of a small image where a batch has none
            itself, so that every rank runs the vision tower; `arrays` are of that then.
        form: how the model takes them; image_id: id of the tokens that get features.
    """

    arrays: dict[str, NDArray[Any]]
    spans: NDArray[np.int64]
    entries: NDArray[np.int64]
    pieces: NDArray[np.int64]
    blank: NDArray[np.int64]
    form: MediaForm
    image_id: int

    def emptied(self) -> BatchMedia:
        """The same without any image."""
        none = self.pieces[:0]
        return self._replace(arrays={}, spans=self.spans[:0], entries=none, pieces=none, blank=none)


def objects(values: list[Any]) -> NDArray[Any]:
    """(N,) the values as an array of objects, whatever they are."""
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out
