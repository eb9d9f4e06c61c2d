"""Tokens of media before the plan, and pixels after it.

Before the window each placeholder is expanded to the number of tokens that the processor will
produce, which depends on the image's size alone. After the plan the process that makes the batch
decodes its images in threads.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.chats.conversations import MEDIA_PARTS
from streampack.cores import usable_cores
from streampack.documents.blocks import Documents, Texts, offsets_of
from streampack.errors import ContentError, StorageError
from streampack.images.attachments import (
    MEDIA,
    NOUNS,
    PATCHES,
    ROWS,
    Attachments,
    BatchMedia,
    HeldMedia,
    Medium,
    Size,
    kind_of,
    objects,
)
from streampack.images.blank_media import blank_media
from streampack.images.families import joined, with_margins
from streampack.images.fetching import Heads, HeldBatch
from streampack.images.images import BrokenImageError, named_failures
from streampack.images.own import planner_of
from streampack.images.pending import Pending
from streampack.per_process import PerProcess
from streampack.sources.base import Source
from streampack.sources.broken import broken_document
from streampack.sources.error_policy import ErrorPolicy
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
        more: planners of films and sounds by kind, with the methods of `ImagePlanner`.

    Attributes:
        planners: planners by kind of media.
        fingerprint: 64-bit hash, in hexadecimal, of all settings that tokens and pixels depend on.

    Raises:
        ConfigError: the processor's family is not supported.
    """

    def __init__(self, processor: Any, more: Mapping[str, Any] | None = None) -> None:
        self.planners: dict[str, Any] = dict(more or {})
        # Processors of sounds, and some of films, are read without their images.
        alone = [each for each in self.planners.values() if getattr(each, "alone", True)]
        self.planner: Any = alone[0] if alone else planner_of(processor)
        if not alone:
            self.planners = {"image": self.planner, **self.planners}
        described = json.dumps(
            {
                **self.planner.describe(),
                **{kind: planner.describe() for kind, planner in (more or {}).items()},
            },
            sort_keys=True,
        )
        self._odd: dict[Size, str] = {}
        marks = {planner.token_id for planner in self.planners.values()}
        #: Tokens of media that this run does not take.
        self._strange = {*_tokens_of(processor)} - marks if more else set()
        self.fingerprint = hashlib.blake2b(described.encode(), digest_size=8).hexdigest()

    # ------------------------------------------------------------------ before the plan

    def texts(self, block: Texts) -> Texts:
        """Write the processor's marker, with its margins, for every image of the texts."""
        media = block.document_fields.get(MEDIA)
        kinds = (
            [()] * len(block) if media is None else [[*map(kind_of, m.references)] for m in media]
        )
        written = [
            self._written(text, held) if isinstance(text, str) else text
            for text, held in zip(block.texts, kinds, strict=True)
        ]
        return replace(block, texts=written)

    def _written(self, text: str, kinds: Sequence[str]) -> str:
        marks = {kind: mark for mark, kind in MEDIA_PARTS.items()}
        tokens = (planner.token for planner in self.planners.values())
        if kinds and not any(each in text for each in (*MEDIA_PARTS, *tokens)):
            text = "".join(marks[kind] for kind in kinds) + text
        for kind, planner in self.planners.items():
            text = text.replace(marks.pop(kind), planner.family.written.format(planner.token))
        for kind, mark in marks.items():  # of media that the family does not take
            text = text.replace(mark, f"<{kind}>")
        return with_margins(text, self.planner.processor)

    def expanded(self, documents: Documents, source: Source, skips: ErrorPolicy) -> Documents:
        """Expand placeholders to the tokens of media, and add the field of patches.

        Args:
            documents: N documents with one placeholder per medium.
            source: the documents' source, which names them in errors.
            skips: gets a `ContentError` for each document with a medium of unknown size, or with
                different numbers of media and placeholders.
        """
        media = documents.document_fields.get(MEDIA)
        if media is None:
            media = objects([Attachments(())] * len(documents))
        offsets = documents.offsets
        marks = [planner.token_id for planner in self.planners.values()]
        taken = [self.planner.video_id, *(each.image_id for each in self.planners.values())]
        others = ({*taken} | self._strange) - {*marks}
        strange = np.flatnonzero(np.isin(documents.tokens, [*others]))
        is_strange = np.diff(np.searchsorted(strange, offsets)) > 0
        places = np.flatnonzero(np.isin(documents.tokens, marks))
        first = np.searchsorted(places, offsets)
        repeats = np.ones(len(documents.tokens), dtype=np.int64)
        planned: list[Attachments] = []
        written: list[NDArray[np.int64]] = []
        heads = Heads(media, self.planners)
        is_place = np.zeros(len(documents.tokens), dtype=np.bool_)
        good: list[int] = []
        for i, attached in enumerate(media):
            slots = places[first[i] : first[i + 1]]
            try:
                if is_strange[i]:
                    raise ValueError("has a token of an image, film or sound in its text")
                made, ids = self.planned(attached, documents.tokens[slots], heads)
                planners = self.planners.values()
                begin, end = offsets[i : i + 2]
                tokens = documents.tokens[begin:end]
                beside = [begin + each.replaced(tokens, slots - begin, ids) for each in planners]
            except ValueError as reason:
                shard, index = (int(documents.origin[name][i]) for name in ("shard", "index"))
                skips.handle(broken_document(source, shard, index, str(reason)))
                continue
            if made.tokens is not None:
                repeats[slots], is_place[slots] = made.tokens, True
                written += ids
                repeats[np.concatenate(beside)] = 0
                made = replace(made, starts=offsets_of(repeats[begin:end])[slots - begin])
            planned.append(made)
            good.append(i)
        patches = [0 if each.patches is None else int(each.patches.sum()) for each in planned]
        documents = _repeated(documents, repeats, is_place, written)
        if len(good) < len(documents):
            documents = documents.take(np.array(good, dtype=np.int64))
        fields = {MEDIA: objects(planned), PATCHES: np.array(patches, dtype=np.int64)}
        return replace(documents, document_fields={**documents.document_fields, **fields})

    def planned(
        self, attached: Attachments, placeholders: NDArray[Any], heads: Heads
    ) -> tuple[Attachments, list[NDArray[np.int64]]]:
        """Return a document's attachments in the order of their tokens, and the ids of these.

        Args:
            placeholders: token ids of the document's placeholders.

        Raises:
            ValueError: media and placeholders differ in number, or a medium cannot be used.
        """
        references, storage = attached.references, attached.storage
        kinds_given = [kind_of(each) for each in references]
        kinds = {planner.token_id: kind for kind, planner in self.planners.items()}
        places = [kinds[int(each)] for each in placeholders]
        if strange := {*kinds_given} - {*self.planners}:
            raise ValueError(f"has {NOUNS[min(strange)]}s, which this source does not read")
        for kind, planner in self.planners.items():
            if (count := kinds_given.count(kind)) != places.count(kind):
                raise ValueError(_miscounted(kind, count, places.count(kind), planner.token))
        if not references:
            return attached, []
        taken: list[Any] = [None] * len(references)  # reference, size, ids and patches by place
        for kind in self.planners:
            if kind not in kinds_given:
                continue
            of_kind = attached
            if len({*kinds_given}) > 1:
                references = tuple(each for each in attached.references if kind_of(each) == kind)
                of_kind = replace(attached, references=references)
            made = zip(references, *self._counted(kind, of_kind, heads), strict=True)
            for place, at in enumerate(places):
                taken[place] = next(made) if at == kind else taken[place]
        references, sizes, ids, counts = zip(*taken, strict=True)
        tokens = np.array([len(each) for each in ids], dtype=np.int64)
        patches = np.array(counts, dtype=np.int64)
        return Attachments(references, sizes, None, tokens, patches, storage), [*ids]

    def _counted(
        self, kind: str, attached: Attachments, heads: Heads
    ) -> tuple[tuple[Size, ...], list[NDArray[np.int64]], list[int]]:
        """Return sizes, token ids and numbers of patches of a document's media of one kind."""
        noun, planner = NOUNS[kind], self.planners[kind]
        article = "an" if noun == "image" else "a"
        try:
            sizes = planner.sizes(attached, heads)
            ids, counted = planner.plan(sizes)
            patches = counted.tolist()
            for size, count in zip(sizes, patches, strict=True):
                if kind == "image":
                    self._require_possible(size, count)
        except BrokenImageError as error:
            raise ValueError(f"has {article} {noun} that cannot be read ({error})") from error
        except ValueError as error:
            raise ValueError(
                f"has {article} {noun} that the processor refuses ({error})"
            ) from error
        return sizes, ids, patches

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
        """Decode and process the media of a batch.

        Args:
            rows: rows with a `HeldBatch` as `media`, or None.
            name: function from a document's origin to its name.
            skips: gets a `ContentError` for each broken medium. If the error is skipped, the
                document carries no loss, and a grey image of the same size replaces the image.

        Raises:
            ContentError: a medium cannot be decoded, or differs from its plan.
            StorageError: a medium could not be read; a retry may succeed.
        """
        batch: HeldBatch = rows.attached.get(MEDIA) or HeldBatch(())
        held = batch.media
        batch.fetch(self.planners)
        batch.fetch_following(self.planners)
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
        # Answers to one prompt have the same images, which are decoded once.
        keys = [(ref if isinstance(ref, str) else id(ref), size) for ref, size, *_ in jobs]
        once = dict(zip(keys, jobs, strict=True))
        run = _pool().map if len(once) > 1 else map
        by_key = dict(zip(once, run(self._arrays, once.values()), strict=True))
        made = [by_key[key] for key in keys]
        batch.drop()
        owners = np.repeat(
            np.arange(len(held)), [len(each.attachments.references) for each in held]
        )
        kinds = [kind_of(each) for held_piece in held for each in held_piece.attachments.references]
        broken = [at for at, each in enumerate(made) if isinstance(each, BrokenImageError)]
        for at in broken:
            owner = held[int(owners[at])]
            kind = kinds[at]
            skips.handle(_error(name(owner.origin), owner, kind, made[at]))
            grey = self._arrays((None if kind == "image" else Medium(kind, None), *jobs[at][1:]))
            if isinstance(grey, BrokenImageError):
                raise _error(name(owner.origin), owner, kind, made[at], _NO_GREY)
            made[at] = grey
        if broken:
            rows = _without_loss(rows, {held[int(owners[at])].piece for at in broken})
        spans = np.concatenate([np.zeros((0, 2), np.int64), *map(_spans, held)])
        pieces = np.array([each.piece for each in held], dtype=np.int64)[owners]
        names = dict.fromkeys(key for each in made for key in each)
        arrays = {key: joined([each[key] for each in made if key in each]) for key in names}
        # A film with sound counts as two, the film last, by which `show` names their tokens.
        of_arrays = [[kind for kind in reversed(ROWS) if ROWS[kind] in each] for each in made]
        number = [len(each) for each in of_arrays]
        entries = [len(a[ROWS[k]]) for a, each in zip(made, of_arrays, strict=True) for k in each]
        array_kinds = np.array([kind for each in of_arrays for kind in each], dtype="U5")
        towers = self._towers_without(array_kinds)
        blank, slots, slot_ids = blank_media(rows, spans, towers)
        media = BatchMedia(
            {**arrays, **blank},
            np.repeat(spans, number, axis=0),
            np.array(entries, dtype=np.int64),
            np.repeat(pieces, number),
            slots,
            slot_ids,
            self.planner.family.form,
            self.planner.image_id,
            self.planner.video_id,
            array_kinds,
        )
        return rows._replace(attached={**rows.attached, MEDIA: media})

    def _arrays(self, job: tuple[Any, Size, int, Any]) -> Any:
        """Return the model's arrays for a medium, or a `BrokenImageError`."""
        reference, size, patches, storage = job
        planner = self.planners[kind_of(reference)]
        reference = reference.reference if isinstance(reference, Medium) else reference
        try:
            if isinstance(reference, Pending):
                with named_failures(reference):
                    reference = reference.result()
            opened = planner.opened(reference, size, storage) if reference is not None else None
            arrays = planner.arrays(planner.blank(size) if opened is None else opened)
        except BrokenImageError as error:
            return error
        except StorageError:
            raise
        except Exception as error:  # processors raise errors of any class at odd images
            return BrokenImageError(f"{type(error).__name__}: {error}"[:200])
        if (count := planner.count(arrays)) != patches:
            return BrokenImageError(f"{count} patches, planned {patches}")
        return arrays

    def _towers_without(self, kinds: NDArray[Any]) -> list[Any]:
        """Return the planners of towers that media of these kinds would not run."""
        towers = [] if len(kinds) else [self.planner]
        sound = getattr(self.planners.get("video"), "sound", None)
        return towers if sound is None or "audio" in kinds else [*towers, sound]


def _tokens_of(processor: Any) -> Iterator[int]:
    """Yield the ids of the tokens that stand for media in texts of a processor."""
    vocabulary = processor.tokenizer.get_vocab()
    for kind in ROWS:
        text = getattr(processor, f"{kind}_token", None)
        if isinstance(text, str) and text in vocabulary:
            yield vocabulary[text]


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


def _miscounted(kind: str, media: int, places: int, token: str) -> str:
    """Return the problem of a document with different numbers of media and placeholders."""
    noun = NOUNS[kind]
    if not media:
        return (
            f"has {places} places for {noun}s ({token} or the placeholder) and no {noun}, so "
            f'{kind}s= names another field or placeholder="" is meant'
        )
    if not places:
        return (
            f"has {media} {noun}s and no place for them in its messages: neither a part "
            f'{{"type": "{kind}"}} nor the placeholder, by default "<{kind}>"'
        )
    return f"has {media} {noun}s and {places} places for them ({token} or the placeholder)"


def _error(
    name: str, held: HeldMedia, kind: str, reason: Exception, remedy: str = _REMEDY
) -> ContentError:
    noun = "an image" if kind == "image" else f"a {NOUNS[kind]}"
    return ContentError(
        f"{name[0].upper()}{name[1:]} has {noun} that cannot be decoded ({reason}).",
        remedy,
        shard=int(held.origin["shard"]),
        index=int(held.origin["index"]),
        document=name,
    )
