"""keys: refuses ``model(**batch)``, since a batch is not a dict of a model's arguments."""

from __future__ import annotations

from typing import NoReturn

from streampack.batch.packed_batch import PackedBatch


def keys(batch: PackedBatch) -> NoReturn:
    """Raise `TypeError`, which recommends ``**batch.hf(model=model)`` instead of ``**batch``."""
    raise TypeError(
        "A PackedBatch is not a dict: models need more than ids to keep documents apart. Write "
        "model(**batch.hf(model=model))."
    )
