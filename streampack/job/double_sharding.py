"""Refuse libraries that would split a dataset of ours a second time.

A `PackedDataset` gives each data-parallel rank its own batches. accelerate and the transformers
Trainer, given a DataLoader of it, either iterate it on rank 0 and deal its batches out, so that
what the other ranks own is never read, or keep every W-th batch of each rank. Both lose (W - 1) / W
of the documents without a word. They iterate the dataset from objects of the classes below, so
these are looked for among the callers when an iteration starts.
"""

from __future__ import annotations

import sys

from streampack.errors import ConfigError

#: Of accelerate.data_loader and transformers.trainer_pt_utils.
RESHARDING_CLASSES = ("DataLoaderDispatcher", "IterableDatasetShard")


def refuse_resharding() -> None:
    """Raise `ConfigError` if an object that splits datasets is among the callers."""
    frame = sys._getframe(1)
    while frame is not None:
        caller = frame.f_locals.get("self")
        for base in type(caller).__mro__:
            if base.__name__ in RESHARDING_CLASSES:
                raise ConfigError(
                    f"This PackedDataset is iterated by {base.__module__}.{base.__name__}, which "
                    "splits its batches over ranks.",
                    "It has been split already, each rank reads its own documents: most of them "
                    "would be lost.",
                    'Use PackedLoader(dataset, output="hf", model=model) as it is: pass it as '
                    "loader= to class PackedTrainer(streampack.trainers.TrainerMixin, Trainer), "
                    "which takes a PackedDataset as eval_dataset= too; or iterate it yourself (see "
                    "docs/consumers.md).",
                )
        parent = frame.f_back
        if parent is None:
            return
        frame = parent
