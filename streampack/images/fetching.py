"""Media by URL, fetched many at a time: heads of a block's media, bytes before their batch."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any

from streampack.images.attachments import (
    Attachments,
    HeldMedia,
    MediaSettings,
    Medium,
    Reference,
    Size,
)
from streampack.images.images import is_remote, pending_head
from streampack.images.pending import Pending
from streampack.storage.storage import Storage

_MOST_HEADS = 64
_MOST_AHEAD_BYTES = 64 << 20


class Heads:
    """Heads of media of unknown size, which are fetched ahead while documents are planned.

    Args:
        media: media of documents, in the order in which `take` asks for them.
        planners: planners by kind; for films and sounds `size` reads a size.
    """

    def __init__(self, media: Iterable[Attachments], planners: Mapping[str, Any]) -> None:
        self._planners = planners
        self._left: Iterator[tuple[Storage, Reference]] = (
            (each.storage, reference)
            for each in media
            if each.sizes is None and each.storage is not None
            for reference in each.references
            if self._is_fetched(reference)
        )
        self._pending: dict[tuple[int, Reference], Pending[Any]] = {}
        self._start()

    def _is_fetched(self, reference: Reference) -> bool:
        if not isinstance(reference, Medium):
            return is_remote(reference)
        is_unknown = reference.settings == MediaSettings() and reference.kind in self._planners
        return is_unknown and is_remote(reference.reference)

    def take(self, reference: Reference, storage: Storage | None) -> Pending[Any] | None:
        """Return a head that is being fetched; heads before it are dropped.

        Returns:
            The head of an image, or the size of a film or sound; None if it is not fetched ahead.
        """
        if not self._is_fetched(reference):
            return None
        key = id(storage), reference
        pending = self._pending.get(key)
        if pending is not None:
            for other in list(self._pending):
                del self._pending[other]
                if other == key:
                    break
            self._start()
        return pending

    def sizes(self, attached: Attachments, planner: Any) -> tuple[Size, ...]:
        """Return the sizes of films or sounds, by their records or from the heads of their files.

        Raises:
            ValueError: a head does not tell it, or a file cannot be read.
        """
        return tuple(
            each.settings.size or self._size(each, attached.storage, planner)
            for each in attached.references
        )

    def _size(self, medium: Medium, storage: Storage | None, planner: Any) -> Size:
        pending = self.take(medium, storage)
        size: Size = pending.result() if pending else planner.size(medium, storage or Storage())
        return size

    def _start(self) -> None:
        for storage, reference in islice(self._left, _MOST_HEADS - len(self._pending)):
            if (id(storage), reference) not in self._pending:
                self._pending[id(storage), reference] = self._begun(reference, storage)

    def _begun(self, reference: Reference, storage: Storage) -> Pending[Any]:
        if not isinstance(reference, Medium):
            return pending_head(reference, storage)
        size = self._planners[reference.kind].size
        return Pending(partial(size, reference, storage)).soon(storage)


class HeldBatch:
    """The images of a batch before they are decoded.

    Attributes:
        media: images by document piece.
        following: the next batch of the lane; None if it is not planned.
    """

    def __init__(self, media: tuple[HeldMedia, ...]) -> None:
        self.media = media
        self.following: HeldBatch | None = None
        self._pending: dict[tuple[int, str], Pending[bytes]] = {}

    def fetch(self, planners: Mapping[str, Any]) -> None:
        """Start to fetch the media by URL: images whole, of films the decoded parts."""
        _fetching.add(self)
        for each in self.media:
            storage = each.attachments.storage
            if storage is None:
                continue
            sized = zip(each.attachments.references, each.attachments.sizes or (), strict=True)
            for reference, size in sized:
                if isinstance(reference, Medium):
                    if is_remote(reference.reference):
                        planners[reference.kind].fetch_ahead(reference.reference, size, storage)
                elif is_remote(reference) and (id(storage), reference) not in self._pending:
                    self._pending[id(storage), reference] = Pending.start(storage, reference)

    def fetch_following(self, planners: Mapping[str, Any]) -> None:
        """Start to fetch the media of the next batch, unless many bytes are held already."""
        if self.following and sum(each.num_bytes for each in _fetching) < _MOST_AHEAD_BYTES:
            self.following.fetch(planners)

    def reference(self, reference: Reference, storage: Any) -> Reference | Pending[bytes]:
        """Return an image, or its bytes as pending."""
        if not is_remote(reference):
            return reference
        return self._pending.get((id(storage), reference), reference)

    def drop(self) -> None:
        """Forget the bytes, and the next batch."""
        _fetching.discard(self)
        self._pending, self.following = {}, None

    @property
    def num_bytes(self) -> int:
        """Bytes that are held."""
        return sum(each.num_bytes for each in self._pending.values())


_fetching: weakref.WeakSet[HeldBatch] = weakref.WeakSet()
