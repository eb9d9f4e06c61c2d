"""Image tokens before the plan, and pixels after it.

Before the window each placeholder is expanded to the number of tokens that the processor will
produce, which depends on the image's size alone. After the plan the process that makes the batch
decodes its images in threads.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.chats.conversations import IMAGE_PART
from streampack.cores import usable_cores
from streampack.documents.blocks import Documents, Texts, offsets_of
from streampack.errors import ContentError, StorageError
from streampack.images.attachments import (
    MEDIA,
    PATCHES,
    Attachments,
    BatchMedia,
    HeldMedia,
    Size,
    objects,
)
from streampack.images.families import joined, with_margins
from streampack.images.fetching import Heads, HeldBatch
from streampack.images.images import BrokenImageError, named_failures
from streampack.images.own import planner_of
from streampack.per_process import PerProcess
from streampack.sources.base import Source
from streampack.sources.broken import broken_document
from streampack.sources.error_policy import ErrorPolicy
from streampack.storage.starts import Pending
from streampack.window.packed_rows import PackedRows

_THREADS = 8
_REMEDY = 'Repair it, or pass on_error="skip", which keeps its document without loss.'
_NO_GREY = "Remove it: a grey image of its size, the replacement, cannot be processed either."
#: A side of at most this many pixels, or at least this multiple of the other, is tried out first.
_FEW_PIXELS, _LONG = 3, 50


class MediaProcessing:
    """Processing of a run's images. Picklable.

    Args:
        processor: a processor of transformers, an `ImageModel` or a `MediaModel`.

    Attributes:
        fingerprint: 64-bit hash, in hexadecimal, of all settings that tokens and pixels depend on.

    Raises:
        ConfigError: the processor's family is not supported.
    """

    def __init__(self, processor: Any) -> None:
        self.planner = planner_of(processor)
        described = json.dumps(self.planner.describe(), sort_keys=True)
        self._odd: dict[Size, str] = {}
        self.fingerprint = hashlib.blake2b(described.encode(), digest_size=8).hexdigest()

    # ------------------------------------------------------------------ before the plan

    def texts(self, block: Texts) -> Texts:
        """Write the processor's marker, with its margins, for every image of the texts."""
        media = block.document_fields.get(MEDIA)
        counts = [0] * len(block) if media is None else [len(each.references) for each in media]
        written = [
            self._written(text, count) if isinstance(text, str) else text
            for text, count in zip(block.texts, counts, strict=True)
        ]
        return replace(block, texts=written)

    def _written(self, text: str, images: int) -> str:
        token = self.planner.token
        if images and IMAGE_PART not in text and token not in text:
            text = IMAGE_PART * images + text
        if IMAGE_PART in text:
            text = text.replace(IMAGE_PART, self.planner.family.written.format(token))
        return with_margins(text, self.planner.processor)

    def expanded(self, documents: Documents, source: Source, skips: ErrorPolicy) -> Documents:
        """Expand placeholders to image tokens, and add the field of patches.

        Args:
            documents: N documents with one placeholder per image.
            source: the documents' source, which names them in errors.
            skips: gets a `ContentError` for each document with an image of unknown size, or with
                different numbers of images and placeholders.
        """
        media = documents.document_fields.get(MEDIA)
        if media is None:
            media = objects([Attachments(())] * len(documents))
        offsets = documents.offsets
        taken = [self.planner.video_id, *{self.planner.image_id} - {self.planner.token_id}]
        strange = np.flatnonzero(np.isin(documents.tokens, taken))
        is_strange = np.diff(np.searchsorted(strange, offsets)) > 0
        places = np.flatnonzero(documents.tokens == self.planner.token_id)
        first = np.searchsorted(places, offsets)
        repeats = np.ones(len(documents.tokens), dtype=np.int64)
        planned: list[Attachments] = []
        written: list[NDArray[np.int64]] = []
        heads = Heads(media)
        is_place = np.zeros(len(documents.tokens), dtype=np.bool_)
        good: list[int] = []
        for i, attached in enumerate(media):
            slots = places[first[i] : first[i + 1]]
            try:
                if is_strange[i]:
                    raise ValueError("has a video token or an image feature token in its text")
                made, ids = self._planned(attached, slots - offsets[i], heads)
            except ValueError as reason:
                shard, index = (int(documents.origin[name][i]) for name in ("shard", "index"))
                skips.handle(broken_document(source, shard, index, str(reason)))
                continue
            if made.tokens is not None:
                repeats[slots], is_place[slots] = made.tokens, True
                written += ids
            planned.append(made)
            good.append(i)
        patches = [0 if each.patches is None else int(each.patches.sum()) for each in planned]
        documents = _repeated(documents, repeats, is_place, written)
        if len(good) < len(documents):
            documents = documents.take(np.array(good, dtype=np.int64))
        fields = {MEDIA: objects(planned), PATCHES: np.array(patches, dtype=np.int64)}
        return replace(documents, document_fields={**documents.document_fields, **fields})

    def _planned(
        self, attached: Attachments, places: NDArray[np.int64], heads: Heads
    ) -> tuple[Attachments, list[NDArray[np.int64]]]:
        """Return a document's attachments with their positions, and the token ids of its images.

        Raises:
            ValueError: images and placeholders differ in number, or an image cannot be used.
        """
        count = len(attached.references)
        if count != len(places):
            raise ValueError(_miscounted(count, len(places), self.planner.token))
        if not count:
            return attached, []
        try:
            sizes = self.planner.sizes(attached, heads)
            ids, patches = self.planner.plan(sizes)
            for size, of_image in zip(sizes, patches.tolist(), strict=True):
                self._require_possible(size, of_image)
        except BrokenImageError as error:
            raise ValueError(f"has an image that cannot be read ({error})") from error
        except ValueError as error:
            raise ValueError(f"has an image that the processor refuses ({error})") from error
        tokens = np.array([len(image_ids) for image_ids in ids], dtype=np.int64)
        starts = places if count == 1 else places + offsets_of(tokens - 1)[:-1]
        storage = attached.storage
        return Attachments(attached.references, sizes, starts, tokens, patches, storage), ids

    def _require_possible(self, size: Size, patches: int) -> None:
        """Raise `ValueError` if the processor makes another number of patches than it announces.

        Some round very short sides differently in their two methods, so a grey image of each
        extreme size is processed once.
        """
        if len(size) != 2 or (min(size) > _FEW_PIXELS and max(size) < _LONG * min(size)):
            return
        if size not in self._odd:
            arrays = self._arrays((None, size, patches, None))
            self._odd[size] = f"{arrays}" if isinstance(arrays, BrokenImageError) else ""
        if self._odd[size]:
            raise ValueError(f"{size[1]} x {size[0]} pixels: {self._odd[size]}")

    # ------------------------------------------------------------------ after the plan

    def processed(
        self, rows: PackedRows, name: Callable[[Any], str], skips: ErrorPolicy
    ) -> PackedRows:
        """Decode and process the images of a batch.

        Args:
            rows: rows with a `HeldBatch` as `media`, or None.
            name: function from a document's origin to its name.
            skips: gets a `ContentError` for each broken image. If the error is skipped, the
                document carries no loss, and a grey image of the same size replaces the image.

        Raises:
            ContentError: an image cannot be decoded, or differs from its plan.
            StorageError: an image could not be read; a retry may succeed.
        """
        batch: HeldBatch = rows.attached.get(MEDIA) or HeldBatch(())
        held = batch.media
        batch.fetch()
        batch.fetch_following()
        jobs = [
            (
                batch.reference(reference, each.attachments.storage),
                size,
                int(patches),
                each.attachments.storage,
            )
            for each in held
            for reference, size, patches in zip(
                each.attachments.references,
                each.attachments.sizes or (),
                each.attachments.patches if each.attachments.patches is not None else (),
                strict=True,
            )
        ]
        made = list(_pool().map(self._arrays, jobs)) if jobs[1:] else [*map(self._arrays, jobs)]
        batch.drop()
        owners = np.repeat(
            np.arange(len(held)), [len(each.attachments.references) for each in held]
        )
        broken = [at for at, each in enumerate(made) if isinstance(each, BrokenImageError)]
        for at in broken:
            owner = held[int(owners[at])]
            skips.handle(_error(name(owner.origin), owner, made[at]))
            grey = self._arrays((None, *jobs[at][1:]))
            if isinstance(grey, BrokenImageError):
                raise _error(name(owner.origin), owner, made[at], _NO_GREY)
            made[at] = grey
        if broken:
            rows = _without_loss(rows, {held[int(owners[at])].piece for at in broken})
        spans = np.concatenate([np.zeros((0, 2), np.int64), *map(_spans, held)])
        pieces = np.array([each.piece for each in held], dtype=np.int64)[owners]
        arrays = {key: joined([each[key] for each in made]) for key in made[0]} if made else {}
        slots = np.zeros(0, dtype=np.int64)
        if not made:
            arrays, slots = self._blank(rows)
        media = BatchMedia(
            arrays,
            spans,
            np.array([len(each["pixel_values"]) for each in made], dtype=np.int64),
            pieces,
            slots,
            self.planner.family.form,
            self.planner.image_id,
        )
        return rows._replace(attached={**rows.attached, MEDIA: media})

    def _arrays(self, job: tuple[Any, Size, int, Any]) -> Any:
        """Return the model's arrays for an image, or a `BrokenImageError`."""
        reference, size, patches, storage = job
        try:
            if isinstance(reference, Pending):
                with named_failures(reference):
                    reference = reference.result()
            arrays = self.planner.arrays(
                self.planner.blank(size)
                if reference is None
                else self.planner.opened(reference, size, storage)
            )
        except BrokenImageError as error:
            return error
        except StorageError:
            raise
        except Exception as error:  # processors raise errors of any class at odd images
            return BrokenImageError(f"{type(error).__name__}: {error}"[:200])
        if (count := self.planner.count(arrays)) != patches:
            return BrokenImageError(f"{count} patches, planned {patches}")
        return arrays

    def _blank(self, rows: PackedRows) -> tuple[dict[str, NDArray[Any]], NDArray[np.int64]]:
        """Return a small image for a batch without images, and the slots, (n,), for its features.

        The slots are padding or the last ones of documents: no other slot sees their inputs, and
        their outputs carry no loss. Both are empty if there are too few such slots.
        """
        arrays, tokens = self.planner.smallest
        padding = [
            np.arange(*rows.boundaries[run : run + 2]) for run in np.flatnonzero(rows.piece < 0)
        ]
        last = rows.boundaries[1:][rows.piece >= 0] - 1
        slots = np.concatenate([*padding, last]).astype(np.int64)
        return (arrays, np.sort(slots[:tokens])) if len(slots) >= tokens else ({}, slots[:0])


_pool = PerProcess(lambda: ThreadPoolExecutor(min(_THREADS, usable_cores()), "streampack-image"))


def _spans(held: HeldMedia) -> NDArray[np.int64]:
    """Return the first and end slots of a document piece's images, (A, 2)."""
    starts, tokens = held.attachments.starts, held.attachments.tokens
    assert starts is not None
    assert tokens is not None
    return np.column_stack((starts, starts + tokens)) + held.slot


def _repeated(
    documents: Documents,
    repeats: NDArray[np.int64],
    is_place: NDArray[np.bool_],
    written: list[NDArray[np.int64]],
) -> Documents:
    """Repeat each token (T,) `repeats` times, with the ids `written`, without loss, at images."""
    ends = offsets_of(repeats)
    tokens: NDArray[Any] = np.repeat(documents.tokens, repeats)
    at_image = np.repeat(is_place, repeats)
    if written:
        ids = np.concatenate(written)
        tokens = tokens.astype(np.uint32) if ids.max() >> 8 * tokens.itemsize else tokens
        tokens[at_image] = ids
    return replace(
        documents,
        tokens=tokens,
        offsets=ends[documents.offsets],
        loss_mask=np.repeat(documents.loss_mask_or_ones, repeats) & ~at_image,
        token_fields={
            name: np.repeat(values, repeats, axis=0)
            for name, values in documents.token_fields.items()
        },
    )


def _without_loss(rows: PackedRows, pieces: set[int]) -> PackedRows:
    """Return the batch with these document pieces excluded from the loss."""
    mask = np.ones(len(rows.tokens), dtype=np.bool_)
    mask = mask if rows.loss_mask is None else rows.loss_mask.copy()
    lost, by_source = 0, rows.by_source if rows.by_source is None else rows.by_source.copy()
    for run in np.flatnonzero(np.isin(rows.piece, [*pieces])).tolist():
        start, stop = rows.boundaries[run : run + 2].tolist()
        learnt = int(mask[start + 1 : stop].sum())
        mask[start:stop] = False
        lost += learnt
        if by_source is not None:
            by_source[rows.source_ids[rows.piece[run]], 2] -= learnt
    return rows._replace(
        loss_mask=mask, num_loss_tokens=rows.num_loss_tokens - lost, by_source=by_source
    )


def _miscounted(images: int, places: int, token: str) -> str:
    """Return the problem of a document with different numbers of images and placeholders."""
    if not images:
        return (
            f"has {places} places for images ({token} or the placeholder) and no image, so images= "
            'names another field or placeholder="" is meant'
        )
    if not places:
        return (
            f"has {images} images and no place for them in its messages: neither a part "
            '{"type": "image"} nor the placeholder, by default "<image>"'
        )
    return f"has {images} images and {places} places for them ({token} or the placeholder)"


def _error(name: str, held: HeldMedia, reason: Exception, remedy: str = _REMEDY) -> ContentError:
    return ContentError(
        f"{name[0].upper()}{name[1:]} has an image that cannot be decoded ({reason}).",
        remedy,
        shard=int(held.origin["shard"]),
        index=int(held.origin["index"]),
        document=name,
    )
