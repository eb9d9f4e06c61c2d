"""PackedDataLoader: a `PackedLoader` as torchtitan's trainer builds, iterates and checkpoints one.

torchtitan 0.3 and the versions after it, whose data stack is Grain's, have the base class in other
modules and build it with other arguments; this is both. Without torchtitan the class has no base.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from streampack.dataset import PackedDataset
from streampack.errors import ConfigError
from streampack.job.topology import Topology
from streampack.loader import PackedLoader
from streampack.run.distributed_state import DistributedState


class _WithoutTorchtitan:
    class Config:
        pass


def _base() -> Any:
    """torchtitan's `BaseDataLoader`."""
    for name in ("torchtitan.components.data.loader", "torchtitan.components.dataloader"):
        try:
            return importlib.import_module(name).BaseDataLoader
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("torchtitan"):
                raise
    return _WithoutTorchtitan


_Base: Any = _base()


class PackedDataLoader(_Base):  # type: ignore[misc]
    """torchtitan's dataloader of packed documents.

    Set ``dataloader=PackedDataLoader.Config(source=...)`` in the trainer's config, and an attention
    backend with masks ("flex" or "varlen"): torchtitan finds documents by positions that are 0.
    It gives ``({"input", "positions"}, labels)``, labels shifted.

    Args:
        config: what to load.
        dp_world_size: data-parallel ranks.
        dp_rank: which of them this is.
        seq_len: tokens per row, in torchtitan 0.3: tensors are (rows, seq_len).
        local_batch_size: rows, in torchtitan 0.3.
        max_context_length: tokens per row, after 0.3: tensors are (T,).
        num_tokens_per_batch: tokens of a batch, after 0.3.
        ignored: what else the trainer passes, as its tokenizer.

    Raises:
        ConfigError: neither pair is given.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(_Base.Config):  # type: ignore[misc]
        """What to load.

        Attributes:
            source: a source, a path, or whatever `PackedDataset` takes.
            options: its other arguments; ``epochs`` is None unless given, since torchtitan ends
                by its own number of steps.
            num_workers: worker processes.
        """

        source: Any = None
        options: dict[str, Any] = field(default_factory=dict)
        num_workers: int = 0

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        seq_len: int | None = None,
        local_batch_size: int | None = None,
        max_context_length: int | None = None,
        num_tokens_per_batch: int | None = None,
        **ignored: Any,
    ) -> None:
        self._flat = num_tokens_per_batch is not None
        shape: dict[str, Any] = {"seq_len": seq_len, "batch_rows": local_batch_size}
        if self._flat:
            shape = {"seq_len": max_context_length, "batch_tokens": num_tokens_per_batch}
        if None in shape.values():
            raise ConfigError(
                f"The shape of a batch is {shape}.",
                "The trainer passed no other size by a name that is known.",
                "Use torchtitan 0.3 or a version after it that passes num_tokens_per_batch.",
            )
        dataset = PackedDataset(
            config.source,
            topology=Topology(rank=dp_rank, world_size=dp_world_size),
            **{"epochs": None, **config.options, **shape},
        )
        self._loader = PackedLoader(dataset, num_workers=config.num_workers)
        self._state = DistributedState(self._loader)

    def __iter__(self) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        for batch in self._loader:
            yield batch.torchtitan(flat=self._flat)

    def state_dict(self) -> dict[str, Any]:
        """One entry, the same on all ranks: a run may go on on another number of them."""
        return self._state.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on after a checkpoint; torchtitan passes nothing where it has no data state."""
        if state_dict:
            self._state.load_state_dict(state_dict)

    def close(self) -> None:
        """Nothing is left open after an iterator."""
