"""TrainerMixin: transformers' Trainer, and TRL's, on a `PackedLoader`.

Every rank puts a file with the loader's state into each checkpoint, so a run goes on after any of
them on as many ranks or others.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from streampack.batch.hf_ways import is_of_transformers
from streampack.errors import ConfigError, StateError
from streampack.job.topology import Topology
from streampack.loader import PackedLoader
from streampack.run.state import merge_states
from streampack.trainers.hf_evaluation import EvaluationMixin, check_evaluated

logger = logging.getLogger(__name__)

#: Arguments of transformers and TRL for what a loader of ours has done already.
WITHOUT_EFFECT = (
    "per_device_train_batch_size", "per_device_eval_batch_size", "dataloader_num_workers",
    "group_by_length", "packing", "padding_free", "max_length", "completion_only_loss",
    "assistant_only_loss",
)  # fmt: skip


class TrainerMixin(EvaluationMixin):
    """Makes a Trainer take its batches from a `PackedLoader`, save its state, and resume from it.

    ``class PackedTrainer(TrainerMixin, Trainer): pass``, and the same for TRL's ``SFTTrainer``. Set
    ``max_steps`` in its arguments. ``train(resume_from_checkpoint=...)`` goes on after the last
    batch of the checkpoint, on any number of ranks that can read the files of all. Batches are not
    skipped a second time: ``ignore_data_skip`` is set. A `PackedDataset`, such as
    `PackedDataset.evaluation` makes, may be the ``eval_dataset``.

    A loader without a ``transform=`` gives what `PackedBatch.hf` makes for the Trainer's model,
    which is so checked to keep documents apart, if it is one of transformers.

    Args:
        loader: gives the arguments of the model.
        allow: settings that may differ from those of the checkpoint that `train` resumes from; see
            `PackedLoader.load_state_dict`.
        arguments: of the Trainer, as are all others by name.

    Raises:
        ConfigError: there is no loader, or what is evaluated has no end.
    """

    def __init__(
        self,
        *arguments: Any,
        loader: PackedLoader | None = None,
        allow: Collection[str] = (),
        **options: Any,
    ) -> None:
        if not isinstance(loader, PackedLoader):
            raise ConfigError(
                f"The Trainer's loader is {'missing' if loader is None else repr(loader)[:80]}.",
                "Its batches come from a PackedLoader.",
                "Pass loader=PackedLoader(dataset), and no train_dataset=.",
            )
        self.loader = loader
        if loader.transform is None:
            loader.transform = self._arguments_of
        loader._trains = False  # the Trainer counts loss tokens by itself
        self._allow = allow
        super().__init__(*arguments, **options)
        evaluated = self.eval_dataset
        for given in evaluated.values() if isinstance(evaluated, dict) else [evaluated]:
            check_evaluated(given)
        ignored = [
            name
            for name in WITHOUT_EFFECT
            if getattr(self.args, name, None) != getattr(type(self.args), name, None)
        ]
        ignored += ["data_collator"] if options.get("data_collator") is not None else []
        if ignored:
            logger.warning(
                "%s: none of these arguments of the Trainer changes anything, since batches are "
                "packed already. What tokens are learnt is said by the source, such as "
                "sources.Chat; the size of a batch by seq_len= and batch_size= of PackedDataset; "
                "the number of processes by num_workers= of PackedLoader.",
                ", ".join(ignored),
            )
        self.args.ignore_data_skip = True
        self.add_callback(_callback(self))  # type: ignore[attr-defined]

    def _arguments_of(self, batch: Any) -> dict[str, Any]:
        """What the model is called with."""
        trainer: Any = self
        known = is_of_transformers(trainer.model)
        arguments: dict[str, Any] = batch.hf(model=trainer.model_wrapped if known else None)
        return arguments

    def get_train_dataloader(self) -> Any:
        """The loader itself: accelerate would split its batches over the ranks once more."""
        return self.loader

    def get_batch_samples(self, *arguments: Any) -> Any:
        """As `Trainer.get_batch_samples`; where all ranks' lanes are dry, 0 / 1 and not 0 / 0."""
        samples, num_items = super().get_batch_samples(*arguments)  # type: ignore[misc]
        return samples, num_items if num_items is None else num_items.clamp(min=1)

    def train(self, resume_from_checkpoint: Any = None, **options: Any) -> Any:
        """As `Trainer.train`; the loader goes on after the checkpoint, too.

        Raises:
            ConfigError: the arguments have no ``max_steps``.
            StateError: the checkpoint has no states of the loader, or of several runs.
        """
        if self.args.max_steps <= 0:
            accumulated = self.args.gradient_accumulation_steps
            raise ConfigError(
                f"max_steps of the training arguments is {self.args.max_steps}.",
                "How many batches there are is known when documents are packed, so a number of "
                "epochs says nothing of when training and its schedule end.",
                "Pass max_steps=; for one pass, loader.estimate_steps().steps"
                f"{f' // {accumulated}' if accumulated > 1 else ''}.",
            )
        if resume_from_checkpoint is True:
            from transformers import trainer_utils

            last: Any = trainer_utils.get_last_checkpoint
            resume_from_checkpoint = last(self.args.output_dir) or True  # it says what is missing
        if isinstance(resume_from_checkpoint, (str, os.PathLike)):
            folder = Path(resume_from_checkpoint)
            state = saved_state(folder, self.loader.dataset.topology)
            self.loader.load_state_dict(state, allow=self._allow)
        return super().train(  # type: ignore[misc]
            resume_from_checkpoint=resume_from_checkpoint, **options
        )


def _callback(trainer: Any) -> Any:
    """Counts on after a resume, and saves the state of this rank."""
    from transformers import TrainerCallback

    loader = trainer.loader

    class OfLoader(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            # Without a length the Trainer divides the batches since it was started by max_steps.
            state.epoch = state.global_step / state.max_steps

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            folder.mkdir(parents=True, exist_ok=True)  # ranks other than 0 may be first
            place = loader.dataset.topology
            path = folder / f"loader-{place.rank}-of-{place.world_size}.json"
            mine = path.with_suffix(f".{os.getpid()}")  # ranks of one model write the same file
            mine.write_text(json.dumps(loader.state_dict()))
            mine.replace(path)

    return OfLoader()


def saved_state(checkpoint: Path, place: Topology) -> dict[str, Any]:
    """The loader's state in a checkpoint: of this rank if there were as many, else of all.

    Raises:
        StateError: it has no states of the loader, or of several runs.
    """
    files = sorted(checkpoint.glob("loader-*-of-*.json"))
    numbers = {file.stem.rpartition("-")[2] for file in files}
    if len(numbers) != 1:
        raise StateError(
            f"{checkpoint} has states of the loader from {len(numbers)} runs: "
            f"{', '.join(file.name for file in files[:4]) or 'no file loader-0-of-*.json'}.",
            "It is not known which batches were trained on.",
            "Resume from a checkpoint whose save was finished by this class"
            + (", and remove the files of other runs." if numbers else "."),
        )
    own = checkpoint / f"loader-{place.rank}-of-{place.world_size}.json"
    states = [json.loads(file.read_text()) for file in ([own] if own in files else files)]
    return states[0] if own in files else merge_states(states)
