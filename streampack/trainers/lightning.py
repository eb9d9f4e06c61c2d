"""DataModuleMixin: Lightning's Trainer on a `PackedLoader`.

Lightning takes batches one ahead of the training step, and saves the state of any loader that has
one, which is a batch too far. So the loader is handed over as something that can only be iterated,
and the state is that after the batch whose step began last, or that before the first one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from streampack.arguments import type_in_words
from streampack.batch import PackedBatch
from streampack.errors import ConfigError
from streampack.loader import PackedLoader
from streampack.run.state import DistributedState
from streampack.trainers.hugging_face import Mixin


class DataModuleMixin(Mixin):
    """Makes a DataModule give the batches of a `PackedLoader` and keep its state in checkpoints.

    ``class PackedDataModule(DataModuleMixin, LightningDataModule): pass``, and
    ``PackedDataModule(loader)`` for ``trainer.fit(model, datamodule=...)``. Training steps get a
    `PackedBatch` on the model's device. A checkpoint holds the state of all ranks, for any number
    of them. Let ``Trainer(use_distributed_sampler=False)``: there is nothing left to divide.

    Args:
        loader: of this rank.
        allow: settings that may differ from those of the checkpoint that training goes on from;
            see `PackedLoader.load_state_dict`.

    Raises:
        ConfigError: it is no `PackedLoader`.
    """

    trainer: Any

    def __init__(self, loader: PackedLoader[Any], *, allow: Collection[str] = ()) -> None:
        super().__init__()
        if not isinstance(loader, PackedLoader):
            raise ConfigError(
                f"The DataModule's loader is {type_in_words(loader)}.",
                "Pass PackedLoader(dataset).",
                setting="loader",
            )
        self._allow = allow
        self.loader = loader
        self._start = loader.state_dict()
        self._last: PackedBatch | None = None

    def train_dataloader(self) -> Any:
        """The loader's batches, going on where it stands."""
        self._start, self._last = self.loader.state_dict(), None
        return StatelessBatches(self.loader)

    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
        """The step begins: the batch is the last one that counts."""
        if not isinstance(batch, PackedBatch):  # of another DataLoader, for validation
            return super().transfer_batch_to_device(  # type: ignore[misc]
                batch, device, dataloader_idx
            )
        if self.trainer.training:
            self._last = batch
        return batch.to(device, non_blocking=True)

    def state_dict(self) -> dict[str, Any]:
        """For the checkpoint, the same on all ranks, which call it together."""
        last = self._last
        state = self._start if last is None else self.loader.state_dict(after=last)
        return DistributedState(self.loader).of_all(state)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on after a checkpoint.

        Raises:
            StateError: it is of another run, or damaged.
        """
        DistributedState(self.loader).load_state_dict(state_dict, allow=self._allow)
        self._start, self._last = self.loader.state_dict(), None


class StatelessBatches:
    """A loader's batches, without its state."""

    def __init__(self, loader: PackedLoader[Any]) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        yield from self._loader
