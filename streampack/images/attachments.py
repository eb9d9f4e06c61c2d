"""Media of a document, held by reference, and media of a batch, before and after decoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Document field of runs with images: each document's `Attachments`, dtype object.
MEDIA = "media"
#: Document field of runs with images: each document's number of patches.
PATCHES = "patches"

#: An image: the bytes, path or URL of its file; in lists also a Pillow image. Films and sounds are
#: `Medium` objects.
Reference = Any
#: Height and width of an image in pixels, as processors order them; a `MediaModel` defines others.
Size = tuple[int, ...]
#: Kinds of media, and the array of each that has a row for every patch.
ROWS = {"image": "pixel_values", "video": "pixel_values_videos", "audio": "input_features"}
#: The kinds in words.
NOUNS = {"image": "image", "video": "film", "audio": "sound"}


class MediaSettings(NamedTuple):
    """Settings of a source of films or sounds.

    Attributes:
        size: size by the record, or None to read the head of the file.
        count_packets: read the file whole if its head does not tell the size.
    """

    size: Size | None = None
    count_packets: bool = False


_UNSET = MediaSettings()


@dataclass(frozen=True, slots=True)
class Medium:
    """A film or a sound.

    Attributes:
        kind: a key of `ROWS`.
        reference: bytes, path or URL of its file; None for a blank one.
        settings: settings of its source.
    """

    kind: str
    reference: Reference
    settings: MediaSettings = _UNSET


def kind_of(reference: Reference) -> str:
    """Return the kind of a medium."""
    return reference.kind if isinstance(reference, Medium) else "image"


@dataclass(frozen=True, slots=True, eq=False)
class Attachments:
    """The A images of a document, in the order of their tokens.

    Attributes:
        references: A references to images.
        sizes: A sizes, after EXIF rotation, or None before they are read.
        starts: (A,) int64, index of each image's first token in the document.
        tokens: (A,) int64, number of tokens of each image.
        patches: (A,) int64, number of patches, the weight of each image. `starts`, `tokens` and
            `patches` are None before the images are planned.
        storage: access to URLs.
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
        """Size of the references in memory, in bytes."""
        held = (each.reference if isinstance(each, Medium) else each for each in self.references)
        return sum(len(each) for each in held if isinstance(each, (bytes, str)))


class HeldMedia(NamedTuple):
    """The images of one document piece of a batch, before they are decoded.

    Attributes:
        piece: index of the document piece in the batch.
        slot: first slot of the piece.
        origin: origin of the document, of dtype `ORIGIN`.
        attachments: the document's images.
    """

    piece: int
    slot: int
    origin: Any
    attachments: Attachments


class MediaForm(NamedTuple):
    """Form in which models of a family take images.

    Attributes:
        axes: positions have three more axes (M-RoPE), derived from `image_grid_thw`.
        batched: arrays have an additional first dimension for the batch.
        types: the model takes `token_type_ids`, which are 1 on image tokens.
    """

    axes: bool = False
    batched: bool = False
    types: bool = False


class BatchMedia(NamedTuple):
    """The A images of a batch, decoded and processed.

    Attributes:
        arrays: the model's image arguments by name, in the order of the images in the rows.
        spans: (A, 2) int64, first slot and end slot of each image.
        entries: (A,) int64, number of rows for each image in the array of its kind.
        pieces: (A,) int64, document piece of each image.
        blank: (n,) int64, slots that get the features of a small grey image if the batch has no
            image, so that every rank runs the vision tower. `arrays` then hold that image.
        blank_ids: (n,) int64, ids of these slots.
        form: form in which the model takes images.
        image_id: id of the tokens that get image features.
        video_id: id of the tokens that get the features of films, or -1.
        kinds: (A,) kind of each, keys of `ROWS`.
    """

    arrays: dict[str, NDArray[Any]]
    spans: NDArray[np.int64]
    entries: NDArray[np.int64]
    pieces: NDArray[np.int64]
    blank: NDArray[np.int64]
    blank_ids: NDArray[np.int64]
    form: MediaForm
    image_id: int
    video_id: int
    kinds: NDArray[Any]

    def tensors(self) -> dict[str, NDArray[Any]]:
        """See `PackedRows.attached`."""
        return self.arrays

    def on_host(self) -> BatchMedia:
        """See `PackedRows.attached`."""
        return self._replace(arrays={})

    def emptied(self) -> BatchMedia:
        """Return a copy without images."""
        none = self.pieces[:0]
        return self._replace(
            arrays={}, spans=self.spans[:0], entries=none, pieces=none, blank=none,
            blank_ids=none, kinds=none,
        )  # fmt: skip


def objects(values: list[Any]) -> NDArray[Any]:
    """Return the values as an (N,) array of dtype object."""
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out
