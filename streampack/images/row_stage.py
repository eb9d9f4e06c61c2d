"""Row stage for images, which attaches references to rows and decodes them in finished batches."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from streampack.images.attachments import MEDIA, HeldMedia
from streampack.images.fetching import HeldBatch
from streampack.images.processing import MediaProcessing
from streampack.sources.error_policy import ErrorPolicy
from streampack.window.entries import HeldBlocks
from streampack.window.gather import Pieces
from streampack.window.packed_rows import PackedRows

#: The last batch made of each window.
_last: weakref.WeakKeyDictionary[HeldBlocks, weakref.ref[HeldBatch]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class AttachedImages:
    """Row stage that also finishes batches when they are handed out."""

    media: MediaProcessing

    token_bytes: ClassVar[int] = 144  # a photograph of 150 KB has 1,000 tokens

    def __call__(self, rows: PackedRows, pieces: Pieces, held: HeldBlocks) -> PackedRows:
        """See `RowStage`."""
        media = enumerate(held.objects(MEDIA, pieces.serial))
        slots = pieces.slot.tolist()
        held_batch = HeldBatch(
            tuple(
                HeldMedia(i, slots[i], pieces.origin[i], each)
                for i, each in media
                if each is not None
            )
        )
        if (last := _last.get(held)) is not None and (before := last()) is not None:
            before.following = held_batch
        _last[held] = weakref.ref(held_batch)
        return rows._replace(attached={**rows.attached, MEDIA: held_batch})

    def empty(self, rows: PackedRows) -> PackedRows:
        """See `RowStage`."""
        return rows

    def finish(
        self, rows: PackedRows, name: Callable[[Any], str], skips: ErrorPolicy
    ) -> PackedRows:
        """Decode and process the images of a batch."""
        return self.media.processed(rows, name, skips)
