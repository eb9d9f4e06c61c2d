"""Block stages of runs with images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streampack.documents.blocks import Documents, Texts
from streampack.images.processing import MediaProcessing
from streampack.stages.base import Place
from streampack.tokenization.short_texts import short_texts


@dataclass(frozen=True, slots=True)
class Margins:
    """Write the processor's image markers and margins into texts."""

    media: MediaProcessing

    def describe(self) -> Mapping[str, Any]:
        return {}

    def __call__(self, block: Texts, place: Place) -> Texts:
        return self.media.texts(short_texts(place.source, block, place.skips))


@dataclass(frozen=True, slots=True)
class Expanded:
    """Expand placeholders to image tokens, and add the field of patches."""

    media: MediaProcessing

    def describe(self) -> Mapping[str, Any]:
        return {"media": self.media.fingerprint}

    def __call__(self, documents: Documents, place: Place) -> Documents:
        return self.media.expanded(documents, place.source, place.skips)
