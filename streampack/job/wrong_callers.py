"""Refuse libraries that would lose batches of ours without a word.

They iterate a dataset or a loader from objects of the classes below, so these are looked for among
the callers when an iteration starts.

- A `PackedDataset` gives each data-parallel rank its own batches. accelerate and the transformers
  Trainer, given a DataLoader of it, either iterate it on rank 0 and deal its batches out, so that
  what the other ranks own is never read, or keep every W-th batch of each rank. Both lose
  (W - 1) / W of the documents.
- Lightning's Trainer, and Ray Train's ``prepare_data_loader``, take a batch ahead of the training
  step. The state of our loader counts it, so that a resumed run would leave it out.
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
#: Of accelerate.data_loader and transformers.trainer_pt_utils.
RESHARDING_CLASSES = ("DataLoaderDispatcher", "IterableDatasetShard")
#: Those that take a batch ahead, and the remedy: of lightning.pytorch.loops and ray.train.torch.
_AHEAD = {
    "_FitLoop": "Pass datamodule= with a class of streampack.trainers.DataModuleMixin and "
    "LightningDataModule.",
    "_WrappedDataLoader": "Leave out prepare_data_loader: iterate PackedLoader(dataset, "
    "device=ray.train.torch.get_device()) itself, which knows this worker's rank.",
}
#: Those that take batches of a loader without its state: an evaluation, our own `DataModuleMixin`.
_TAKES_NO_STATE = ("_EvaluationLoop", "_PredictionLoop", "StatelessBatches")


def refuse_resharding() -> None:
    """Raise `ConfigError` if an object that splits datasets is among the callers."""
    for kind in _callers():
        if kind.__name__ in RESHARDING_CLASSES:
            raise ConfigError(
                f"This PackedDataset is iterated by {kind.__module__}.{kind.__name__}, which "
                "would split its batches over ranks a second time.",
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
    """Raise `StateError` if torch.distributed.checkpoint asks a loader itself for its state.

    It makes a key of every lane, and a load asks for those of its own lanes.
    """
    if sys._getframe(2).f_globals.get("__name__", "").startswith("torch.distributed.checkpoint."):
        raise StateError(
            "torch.distributed.checkpoint cannot load the state of a bare PackedLoader.",
            'Pass {"data": DistributedState(loader)}, for any number of ranks.',
            setting="loader",
        )


def _callers() -> Iterator[type]:
    """The classes, and those above them, of the objects among the callers, the nearest first.

    Only of these libraries' modules: the names of a frame that is looked at keep their values, and
    a loop that a user leaves would never end its workers.
    """
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(_MODULES):
            yield from type(frame.f_locals.get("self")).__mro__
        parent = frame.f_back
        if parent is None:
            return
        frame = parent
