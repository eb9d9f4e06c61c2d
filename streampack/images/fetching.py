"""Images by URL, fetched many at a time: heads of a block's images, bytes before their batch."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from streampack.images.attachments import Attachments, HeldMedia, Reference
from streampack.images.images import is_remote, pending_head
from streampack.storage.starts import Pending
from streampack.storage.storage import Storage

_MOST_HEADS = 64
_MOST_AHEAD_BYTES = 64 << 20


class Heads:
    """Heads of images of unknown size, which are fetched ahead while documents are planned.

    Args:
        given: images of documents, in the order in which `take` asks for them.
    """

    def __init__(self, media: Iterable[Attachments]) -> None:
        self._left: Iterator[tuple[Storage, str]] = (
            (each.storage, reference)
            for each in media
            if each.sizes is None and each.storage is not None
            for reference in each.references
            if is_remote(reference)
        )
        self._pending: dict[tuple[int, str], Pending] = {}
        self._start()

    def take(self, reference: Reference, storage: Storage | None) -> Pending | None:
        """Return the head of an image if it is being fetched; heads before it are dropped."""
        if not is_remote(reference):
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

    def _start(self) -> None:
        for storage, url in islice(self._left, _MOST_HEADS - len(self._pending)):
            if (id(storage), url) not in self._pending:
                self._pending[id(storage), url] = pending_head(url, storage)


class HeldBatch:
    """The images of a batch before they are decoded.

    Attributes:
        media: images by document piece.
        following: the next batch of the lane; None if it is not planned.
    """

    def __init__(self, media: tuple[HeldMedia, ...]) -> None:
        self.media = media
        self.following: HeldBatch | None = None
        self._pending: dict[tuple[int, str], Pending] = {}

    def fetch(self) -> None:
        """Start to fetch the images by URL."""
        _fetching.add(self)
        for each in self.media:
            storage = each.attachments.storage
            for reference in filter(is_remote, each.attachments.references):
                if storage is not None and (id(storage), reference) not in self._pending:
                    self._pending[id(storage), reference] = Pending.start(storage, reference)

    def fetch_following(self) -> None:
        """Start to fetch the images of the next batch, unless many bytes are held already."""
        if self.following and sum(each.num_bytes for each in _fetching) < _MOST_AHEAD_BYTES:
            self.following.fetch()

    def reference(self, reference: Reference, storage: Any) -> Reference | Pending:
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
