"""Mix-in for Lightning's Trainer with a `PackedLoader`.

Lightning fetches one batch ahead of the training step and saves the state of any stateful loader,
which would be one batch too far. The loader is therefore wrapped in an object that can only be
iterated, and the mix-in saves the state after the batch of the latest training step, or the state
before the first one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from streampack.arguments import type_in_words
from streampack.batch import PackedBatch
from streampack.distributed.state import DistributedState
from streampack.errors import ConfigError
from streampack.loader import PackedLoader
from streampack.trainers.hugging_face import Mixin


class DataModuleMixin(Mixin):
    """Mix-in for a DataModule that delivers a `PackedLoader`'s batches and checkpoints its state.

    Write ``class PackedDataModule(DataModuleMixin, LightningDataModule): pass``, and pass
    ``PackedDataModule(loader)`` to ``trainer.fit(model, datamodule=...)``. Training steps get a
    `PackedBatch` on the model's device. A checkpoint has the states of all ranks and resumes on any
    number of them. Set ``Trainer(use_distributed_sampler=False)``, because the loader already
    divides the data.

    Args:
        loader: this rank's loader.
        allow: settings that may differ from the checkpoint that training resumes from; see
            `PackedLoader.load_state_dict`.

    Raises:
        ConfigError: `loader` is not a `PackedLoader`.
    """

    trainer: Any

    def __init__(self, loader: PackedLoader[Any], *, allow: Collection[str] = ()) -> None:
        super().__init__()
        if not isinstance(loader, PackedLoader):
            raise ConfigError(
                f"loader must be a PackedLoader, got {type_in_words(loader)}.",
                "Pass PackedLoader(dataset).",
                setting="loader",
            )
        self._allow = allow
        self.loader = loader
        self._start = loader.state_dict()
        self._last: PackedBatch | None = None

    def train_dataloader(self) -> Any:
        """Return the loader's batches from its current position."""
        self._start, self._last = self.loader.state_dict(), None
        return StatelessBatches(self.loader)

    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
        """Move a batch to the device; a training batch becomes the last one in the saved state."""
        if not isinstance(batch, PackedBatch):  # a batch of another DataLoader, such as validation
            return super().transfer_batch_to_device(  # type: ignore[misc]
                batch, device, dataloader_idx
            )
        if self.trainer.training:
            self._last = batch
        return batch.to(device, non_blocking=True)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, equal on all ranks, which must all call this."""
        last = self._last
        state = self._start if last is None else self.loader.state_dict(after=last)
        return DistributedState(self.loader).of_all(state)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume from a checkpoint.

        Raises:
            StateError: the state belongs to another run, or is damaged.
        """
        DistributedState(self.loader).load_state_dict(state_dict, allow=self._allow)
        self._start, self._last = self.loader.state_dict(), None


class StatelessBatches:
    """Iterable of a loader's batches that hides its state."""

    def __init__(self, loader: PackedLoader[Any]) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        yield from self._loader
