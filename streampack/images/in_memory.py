"""Images of documents in memory, with the tokens of images in their ids."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import Documents
from streampack.images.attachments import MEDIA, Attachments, objects
from streampack.images.fetching import Heads
from streampack.images.images import references_in
from streampack.images.processing import MediaProcessing
from streampack.images.row_stage import AttachedImages
from streampack.sources.error_policy import ErrorPolicy
from streampack.sources.records import BrokenDocumentError
from streampack.storage.storage import Storage
from streampack.window.packed_rows import PackedRows


@dataclass(frozen=True, slots=True)
class GivenImages:
    """The images of the documents of a plan.

    Attributes:
        images: lists of images by index of the document; see `MicrobatchPlan.batches`.
        media: processing of the images.
    """

    images: Any
    media: MediaProcessing

    @classmethod
    def of(cls, images: Any, processor: Any) -> GivenImages:
        """Collect the arguments of `MicrobatchPlan.batches`; see `MediaProcessing` for errors."""
        return cls(images, MediaProcessing(processor))

    @property
    def stage(self) -> AttachedImages:
        """The row stage that attaches the images."""
        return AttachedImages(self.media)

    def attached(
        self, documents: Documents, numbers: NDArray[np.int64]
    ) -> tuple[Documents, dict[int, str]]:
        """Add the field of images to documents; without a loss mask, image tokens have no loss.

        Args:
            documents: documents with the ids of their images.
            numbers: (D,) indices of the documents.

        Returns:
            The documents, and faults by position: images that cannot be read, or without their
            tokens in the ids.
        """
        storage, faults, held = Storage(), dict[int, str](), list[Attachments]()
        for i, number in enumerate(numbers.tolist()):
            try:
                references = references_in(self.images[number], "in images")
                attached = Attachments(references, storage=storage)
                held.append(self._located(documents.document(i), attached))
            except (ValueError, BrokenDocumentError) as reason:
                held.append(Attachments(()))
                faults[i] = str(reason)
        fields = {**documents.document_fields, MEDIA: objects(held)}
        mask = documents.loss_mask
        if mask is None:
            mask = np.ones(len(documents.tokens), dtype=np.bool_)
            for begin, each in zip(documents.offsets.tolist(), held, strict=False):
                if each.starts is not None and each.tokens is not None:
                    for start, count in zip(each.starts + begin, each.tokens, strict=True):
                        mask[start : start + count] = False
        return replace(documents, document_fields=fields, loss_mask=mask), faults

    def finished(self, rows: PackedRows) -> PackedRows:
        """Decode and process the images of a batch; see `MediaProcessing.processed` for errors."""
        return self.stage.finish(rows, lambda origin: f"document {origin['index']}", ErrorPolicy())

    def _located(self, ids: NDArray[Any], attached: Attachments) -> Attachments:
        """Return the images of a document with the places of their tokens in its ids, (T,).

        Raises:
            ValueError: an image cannot be read, or ids and images do not fit together.
        """
        planner = self.media.planner
        marks = np.full(len(attached.references), planner.token_id)
        planned, written = self.media.planned(
            attached, marks, Heads([attached], self.media.planners)
        )
        starts, end = np.zeros(len(written), dtype=np.int64), 0
        is_free = np.ones(len(ids), dtype=np.bool_)
        for number, of_image in enumerate(written):
            windows = np.flatnonzero(ids[end : len(ids) - len(of_image) + 1] == of_image[0]) + end
            fits = (at for at in windows if (ids[at : at + len(of_image)] == of_image).all())
            if (at := next(fits, None)) is None:
                raise ValueError(
                    f"lacks the {len(of_image)} tokens of its image {number}, after token {end}"
                )
            starts[number], end = at, at + len(of_image)
            is_free[at:end] = False
        left = is_free & np.isin(ids, [planner.image_id, planner.video_id])
        if left.any():
            raise ValueError(
                f"has {left.sum()} image or video tokens that belong to none of its "
                f"{len(written)} images, the first at token {left.argmax()}"
            )
        return replace(planned, starts=starts) if written else attached
