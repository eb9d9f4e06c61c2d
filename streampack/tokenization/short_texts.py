"""The limit of the size of texts, since encoding takes many times their size in memory."""

from __future__ import annotations

import numpy as np

from streampack.documents.blocks import Texts, text_bytes
from streampack.sources.base import Source
from streampack.sources.error_policy import ErrorPolicy
from streampack.sources.reading import too_long


def short_texts(source: Source, texts: Texts, skips: ErrorPolicy) -> Texts:
    """Return the texts within the limit of `source.reading`, which may be tokenized.

    Args:
        source: source of the texts.
        texts: N texts.
        skips: gets a `ContentError` for each longer text.
    """
    limit = source.reading.most_text_bytes
    long = {i: size for i, text in enumerate(texts.texts) if (size := text_bytes(text)) > limit}
    if not long:
        return texts
    from streampack.sources.broken import broken_document

    for i, size in long.items():
        shard, index = int(texts.origin["shard"][i]), int(texts.origin["index"][i])
        skips.handle(broken_document(source, shard, index, too_long(size, limit)))
    return texts.take(np.flatnonzero(~np.isin(np.arange(len(texts)), [*long])))
