"""Refuse libraries that would silently lose batches.

They iterate a dataset or a loader from objects of the classes below, so the callers are searched
for these classes when an iteration starts.

- A `PackedDataset` gives each data-parallel rank its own batches. accelerate and the transformers
  Trainer, given a DataLoader of it, either iterate it on rank 0 and distribute its batches, so that
  the other ranks' documents are never read, or keep every W-th batch of each rank. Both lose
  (W - 1) / W of the documents.
- Lightning's Trainer, and Ray Train's ``prepare_data_loader``, take a batch ahead of the training
  step. The loader's state counts it as delivered, so that a resumed run would leave it out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from streampack.errors import ConfigError, StateError

_MODULES = (
    "accelerate.",
    "lightning.",
    "pytorch_lightning.",
    "ray.train.",
    "streampack.trainers.",
    "transformers.",
)
#: Classes of accelerate.data_loader and transformers.trainer_pt_utils that split batches.
RESHARDING_CLASSES = ("DataLoaderDispatcher", "IterableDatasetShard")
#: Classes of lightning.pytorch.loops and ray.train.torch that take a batch ahead; the remedies.
_AHEAD = {
    "_FitLoop": "Pass datamodule= with a class of streampack.trainers.DataModuleMixin and "
    "LightningDataModule.",
    "_WrappedDataLoader": "Leave out prepare_data_loader: iterate PackedLoader(dataset, "
    "device=ray.train.torch.get_device()) itself, which knows this worker's rank.",
}
#: Classes that iterate a loader without saving its state: an evaluation, our `DataModuleMixin`.
_TAKES_NO_STATE = ("_EvaluationLoop", "_PredictionLoop", "StatelessBatches")


def refuse_resharding() -> None:
    """Raise `ConfigError` if an object that splits datasets is among the callers."""
    for kind in _callers():
        if kind.__name__ in RESHARDING_CLASSES:
            raise ConfigError(
                "A PackedDataset divides batches among ranks itself, and "
                f"{kind.__module__}.{kind.__name__} would divide them a second time.",
                "Iterate PackedLoader(dataset) itself, or pass it as loader= to a class of "
                "streampack.trainers.TrainerMixin and Trainer.",
                setting="dataset",
            )


def refuse_taking_ahead() -> None:
    """Raise `ConfigError` if a trainer takes batches of a `PackedLoader` ahead of the step."""
    for kind in _callers():
        if kind.__name__ in _TAKES_NO_STATE:
            return
        if kind.__name__ in _AHEAD:
            raise ConfigError(
                f"{kind.__module__}.{kind.__name__} takes batches of this PackedLoader ahead of "
                "the training step, so that a resumed run would leave one out.",
                _AHEAD[kind.__name__],
                setting="loader",
            )


def refuse_bare_checkpointing() -> None:
    """Raise `StateError` if torch.distributed.checkpoint requests the state of a bare loader.

    It stores every lane under a key of its own, and a load requests only the keys of its own lanes.
    """
    if sys._getframe(2).f_globals.get("__name__", "").startswith("torch.distributed.checkpoint."):
        raise StateError(
            "torch.distributed.checkpoint cannot load the state of a bare PackedLoader.",
            'Pass {"data": DistributedState(loader)}, for any number of ranks.',
            setting="loader",
        )


def _callers() -> Iterator[type]:
    """Yield the classes and base classes of the objects among the callers, the nearest first.

    Only frames of these libraries' modules are inspected: inspecting a frame keeps its variables
    alive, so that a loop which a user leaves would never end its workers.
    """
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(_MODULES):
            yield from type(frame.f_locals.get("self")).__mro__
        parent = frame.f_back
        if parent is None:
            return
        frame = parent
