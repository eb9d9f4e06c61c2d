"""Compiling the kernels of a lane before worker processes are started."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from streampack.documents.blocks import Documents, make_origin
from streampack.documents.fields import FieldTypes
from streampack.lane.config import LaneConfig
from streampack.ordering import SimilarityOrder
from streampack.window.gather import gather_rows
from streampack.window.token_fields import derive_fields
from streampack.window.window import Window


def warm_up(config: LaneConfig) -> None:
    """Compile or load every kernel a lane needs, so that forked workers inherit them."""
    for dtype in (np.uint16, np.uint32):
        tokens = np.zeros(5, dtype=dtype)
        origin = make_origin(0, np.arange(2, dtype=np.int64))
        documents = Documents(tokens, np.array([0, 3, 5], dtype=np.int64), origin)
        documents.take(np.array([1, 0], dtype=np.int64))
        if isinstance(config.order, SimilarityOrder) and config.order.exact:  # loads no model
            config.order.order(documents)
        window = Window(
            config.window,
            config.packer,
            batch_tokens=config.batch_tokens,
            seed=0,
            balance=config.balance,
        )
        window.admit(documents, 0)
        planned = window.plan(final=True)
        layout = replace(config.row_format, fields=FieldTypes(), grouped=False)
        rows = gather_rows(planned, config.batch_tokens, window, layout)
        derive_fields(rows[0])
        window.advance(planned)
