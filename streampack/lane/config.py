"""LaneConfig: all settings that determine the batches of lanes; compile the kernels for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from streampack._jit import compiled_at_once
from streampack.deals.rule import DealRule
from streampack.deals.settings import DealSettings
from streampack.documents.blocks import Documents, make_origin
from streampack.job.topology import Topology
from streampack.packing.choice import RowChoice
from streampack.packing.packer import Packer, fields_of, is_unmeasured, row_limits
from streampack.sources.error_policy import ErrorPolicy
from streampack.streams.base import LaneStream
from streampack.streams.stream import StreamConfig
from streampack.window.config import WindowConfig
from streampack.window.empty_rows import empty_rows
from streampack.window.gather import RowFormat, gather_rows
from streampack.window.packed_rows import PackedRows, derive_fields
from streampack.window.window import Window

Wrapper: TypeAlias = Callable[[LaneStream, "Mapping[str, Any] | None"], LaneStream]
MOST_LANES = 1 << 20  # maximum number of lanes in a run


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneConfig(StreamConfig):
    """Everything that determines the batches of a run, shared by all of its lanes.

    Attributes:
        packer, window, batch_tokens: packing of documents into rows and batches; `window` is
            resolved.
        row_format: layout of rows.
        choice: choice of the rows that go in a round.
        dealing: rule by which lanes are dealt the source; None divides every epoch equally.
        on_take: functions that are called with a rank's run and a batch with documents, when the
            loop takes it.
        wrappers: functions that put another stream around the stream of a lane, given the state
            that the lane starts from (None is its beginning). The window of a state is reread
            without them.
    """

    packer: Packer
    window: WindowConfig
    batch_tokens: int
    row_format: RowFormat
    choice: RowChoice = field(default_factory=RowChoice)
    dealing: DealRule | None = None
    on_take: tuple[Callable[[Any, Any], None], ...] = ()
    wrappers: tuple[Wrapper, ...] = ()

    @property
    def deal_settings(self) -> DealSettings:
        """Return the settings that deals depend on."""
        return DealSettings(
            source=self.source,
            epochs=self.epochs,
            lanes=self.lanes,
            batch_tokens=self.batch_tokens,
            window_tokens=self.window.tokens(self.packer),
            window_share=row_limits(self.packer).window_share,
            ordered=self.order is not None,
        )

    @property
    def needs_sample(self) -> bool:
        """Return whether a sample of the corpus must be measured before the run."""
        return is_unmeasured(self.packer) or is_unmeasured(self.choice)

    @property
    def finishes(self) -> bool:
        """Return whether a row stage finishes batches when they are handed out."""
        return any(hasattr(stage, "finish") for stage in self.row_format.stages)

    @property
    def stage_bytes(self) -> int:
        """Return the bytes per token in the window that row stages use; see `RowStage`."""
        return sum(getattr(stage, "token_bytes", 0) for stage in self.row_format.stages)

    def finished(
        self, rows: PackedRows, name: Callable[[Any], str], skips: ErrorPolicy
    ) -> PackedRows:
        """Apply the finishing row stages to a batch, when it is handed out."""
        for stage in self.row_format.stages:
            if (finish := getattr(stage, "finish", None)) is not None:
                rows = finish(rows, name, skips)
        return rows

    def empty_batch(self, step: int) -> PackedRows:
        """Return rows of padding, in the shape of batch `step` of any lane."""
        seq_len = self.packer.seq_len_at(step, schedule_seed=self.seed)
        (rows,) = self.packer._rows_per_batch(np.array([seq_len]), self.batch_tokens).tolist()
        return empty_rows(self.row_format, rows, seq_len)

    def mean_batch_tokens(self, count: int) -> float:
        """Return the mean number of slots of a lane's first `count` batches."""
        return self.batch_tokens * self.packer._batch_share(count, schedule_seed=self.seed)


@dataclass(frozen=True, slots=True)
class LaneShare:
    """The lanes that a process runs, and the states that they start from.

    Attributes:
        config: configuration of the run.
        topology: topology of the rank that takes the batches.
        start: index of the first batch.
        states: start state of each lane (None is its beginning), in the order of the rotation.
    """

    config: LaneConfig
    topology: Topology
    start: int
    states: Mapping[int, dict[str, Any] | None]


@compiled_at_once()
def warm_up(config: LaneConfig) -> None:
    """Compile or load every kernel a lane needs, so that forked workers inherit them."""
    for dtype in (np.uint16, np.uint32):
        tokens = np.zeros(5, dtype=dtype)
        origin = make_origin(0, np.arange(2, dtype=np.int64))
        weights = {name: np.zeros(2, dtype=np.int64) for name in fields_of(config.packer)}
        documents = Documents(
            tokens, np.array([0, 3, 5], dtype=np.int64), origin, document_fields=weights
        )
        documents.take(np.array([1, 0], dtype=np.int64))
        if (warm := getattr(config.order, "warm_up", None)) is not None:
            warm(documents)
        window = Window(
            config.window,
            config.packer,
            batch_tokens=config.batch_tokens,
            seed=0,
            choice=config.choice,
        )
        window.admit(documents, np.arange(2))
        planned = window.plan(final=True)
        layout = replace(config.row_format, stages=())
        rows = gather_rows(planned, window.buffer, layout)
        derive_fields(rows[0])
        window.advance(planned)
