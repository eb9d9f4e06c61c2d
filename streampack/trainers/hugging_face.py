"""TrainerMixin: transformers' Trainer, and TRL's, on a `PackedLoader`; its evaluation.

Every rank puts a file with the loader's state into each checkpoint, so a run goes on after any of
them on as many ranks or others.

EvaluationMixin: the Trainer's evaluate() and predict() on packed batches.

The Trainer averages the losses of batches, which is not the mean over tokens where batches hold
unequal numbers of them. Here each batch's mean is weighted by its loss tokens, over all ranks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch

from streampack.batch.hf_ways import is_of_transformers
from streampack.dataset import PackedDataset
from streampack.errors import ConfigError, StateError
from streampack.job.topology import Topology
from streampack.loader import PackedLoader
from streampack.run.state import merge_states


class Mixin:
    """Base of the mix-ins. A class that names one after the trainer's own class is refused."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        *before, last = cls.__bases__
        if before and issubclass(last, Mixin):
            names = ", ".join(base.__name__ for base in before)
            raise TypeError(
                f"{last.__name__} is the last base of {cls.__name__}, so that nothing of the "
                f"trainer would be changed. Write class {cls.__name__}({last.__name__}, {names})."
            )


class EvaluationMixin(Mixin):
    """Makes a Trainer take a `PackedDataset` as ``eval_dataset=``, by itself or in a dict of names.

    Each evaluation reads it from its beginning. ``eval_loss`` is the mean over all its loss tokens.
    """

    args: Any
    accelerator: Any
    loader: PackedLoader[Any]
    eval_dataset: Any
    _loss: torch.Tensor | None = None  # of the evaluation that runs: sum, tokens

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """As `Trainer.get_eval_dataloader`; of a `PackedDataset`, its batches.

        Raises:
            ConfigError: it is endless, or a `PackedLoader` whose batches no Trainer takes.
        """
        chosen = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(chosen, str):
            chosen = self.eval_dataset[chosen]
        packed = self._packed(chosen)
        return packed or super().get_eval_dataloader(eval_dataset)  # type: ignore[misc]

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """As `Trainer.get_test_dataloader`; of a `PackedDataset`, its batches."""
        return self._packed(test_dataset) or super().get_test_dataloader(  # type: ignore[misc]
            test_dataset
        )

    def evaluation_loop(self, dataloader: Any, *arguments: Any, **options: Any) -> Any:
        """As `Trainer.evaluation_loop`; the loss of packed batches is the mean over loss tokens."""
        if not isinstance(dataloader, PackedLoader):
            return super().evaluation_loop(dataloader, *arguments, **options)  # type: ignore[misc]
        wide = torch.float32 if self.args.device.type == "mps" else torch.float64
        self._loss = torch.zeros(2, dtype=wide, device=self.args.device)
        try:
            output = super().evaluation_loop(  # type: ignore[misc]
                dataloader, *arguments, **options
            )
            total, tokens = self.accelerator.gather(self._loss).view(-1, 2).sum(dim=0).tolist()
        finally:
            self._loss = None
        loss = f"{options.get('metric_key_prefix', 'eval')}_loss"
        if loss in output.metrics:
            output.metrics[loss] = total / max(tokens, 1)
        return output

    def prediction_step(self, model: Any, inputs: Any, *arguments: Any, **options: Any) -> Any:
        """As `Trainer.prediction_step`; of packed batches the loss is counted by tokens."""
        labels = inputs.get("labels") if self._loss is not None else None
        tokens = torch.zeros(()) if labels is None else labels.ne(-100).sum()
        loss, *outputs = super().prediction_step(  # type: ignore[misc]
            model, inputs, *arguments, **options
        )
        if self._loss is not None:
            tokens = tokens.to(self._loss)
            # A batch without loss tokens may have the loss 0 / 0, or none; all ranks gather one.
            loss = tokens.new_zeros(()) if loss is None or not tokens else loss.to(tokens)
            self._loss += torch.stack([loss * tokens, tokens])
            loss = loss.float()
        return loss, *outputs

    def compute_loss(self, *arguments: Any, **options: Any) -> Any:
        """As `Trainer.compute_loss`; in an evaluation, the mean over the batch of this rank."""
        if self._loss is not None:
            options["num_items_in_batch"] = None
        return super().compute_loss(*arguments, **options)  # type: ignore[misc]

    def _reject_skip_prepare_without_labels(self, datasets: dict[str, Any], *rest: Any) -> None:
        """Of TRL's `SFTTrainer`, which asks datasets for the names of their columns; not ours."""
        kinds = (PackedDataset, PackedLoader)
        theirs = {name: data for name, data in datasets.items() if not isinstance(data, kinds)}
        super()._reject_skip_prepare_without_labels(theirs, *rest)  # type: ignore[misc]

    def _packed(self, dataset: Any) -> PackedLoader[Any] | None:
        """The loader of a dataset of ours, or of ours in a loader; None for any other."""
        check_evaluated(dataset)
        if isinstance(dataset, PackedDataset):
            dataset = PackedLoader(dataset)
        if not isinstance(dataset, PackedLoader):
            return None
        dataset.transform = dataset.transform or self.loader.transform
        dataset._trains = False
        return dataset


def check_evaluated(dataset: Any) -> None:
    """Raise `ConfigError` for a dataset or loader of ours that a Trainer cannot evaluate."""
    if isinstance(dataset, PackedLoader):
        dataset = dataset.dataset
    if isinstance(dataset, PackedDataset) and dataset.plan.config.epochs is None:
        raise ConfigError(
            "The dataset that is evaluated has epochs=None.",
            "Pass PackedDataset.evaluation(source, ...).",
            setting="epochs",
        )


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
        ConfigError: there is no loader; what is evaluated has no end; accelerate divides sequences
            among ranks, or ranks that hold parts of one model have different batches.
    """

    def __init__(
        self,
        *arguments: Any,
        loader: PackedLoader[Any] | None = None,
        allow: Collection[str] = (),
        **options: Any,
    ) -> None:
        if not isinstance(loader, PackedLoader):
            raise ConfigError(
                f"The Trainer's loader is {'missing' if loader is None else repr(loader)[:80]}.",
                "Pass loader=PackedLoader(dataset), and no train_dataset=.",
                setting="loader",
            )
        self.loader = loader
        if loader.transform is None:
            loader.transform = self._arguments_of
        loader._trains = False  # the Trainer counts loss tokens by itself
        self._allow = allow
        given = options.get("args", arguments[1] if len(arguments) > 1 else None)
        check_parallelism(getattr(given, "parallelism_config", None), loader)
        super().__init__(*arguments, **options)
        check_parallelism(getattr(self.accelerator, "parallelism_config", None), loader)
        evaluated = self.eval_dataset
        for given in evaluated.values() if isinstance(evaluated, dict) else [evaluated]:
            check_evaluated(given)
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
                "Pass max_steps=; for one pass, loader.estimate_steps().steps"
                f"{f' // {accumulated}' if accumulated > 1 else ''}.",
                setting="max_steps",
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


def check_parallelism(config: Any, loader: PackedLoader[Any]) -> None:
    """Raise `ConfigError` if accelerate's `ParallelismConfig` does not go with a loader."""
    if config is None:
        return
    divides = [name for name in ("cp_size", "sp_size") if (getattr(config, name, 1) or 1) > 1]
    if divides:
        raise ConfigError(
            f"{divides[0]} of the parallelism_config is {getattr(config, divides[0])}, and "
            "accelerate's context parallelism has no masks that keep documents apart.",
            "Leave it out, or write the loop with batch.context_parallel() (docs/balance.md).",
            setting="parallelism_config",
        )
    ranks = loader.dataset.topology.world_size
    if ranks != config.data_parallel_size:
        raise ConfigError(
            f"The parallelism_config has {config.data_parallel_size} data-parallel ranks, and the "
            f"dataset {ranks}.",
            'Pass topology=Topology.from_mesh(mesh, ("dp_replicate", "dp_shard")), of the '
            "dimensions that the mesh has, to the dataset.",
            setting="topology",
        )


class Epochs:
    """Counts passes over the corpus, as far as its size is known.

    Args:
        loader: of this rank.
    """

    def __init__(self, loader: PackedLoader[Any]) -> None:
        self._run = loader._run
        self._pass_steps: float | None = None
        self._before = 0  # steps of runs that have ended and were begun again
        self._taken = 0

    def measure(self) -> None:
        """Estimate how many steps a pass has; costs a millisecond once the first one is known."""
        plan = self._run.plan
        if plan.config.epochs is not None:
            found = self._run.estimate_steps()
        elif self._pass_steps is None:
            from streampack.run.estimation import forecast

            once = forecast(plan.config, plan.topology)
            found = None if once is None else once.steps
        else:
            return
        if found is not None:
            self._pass_steps = max(found.steps, 1) / (plan.config.epochs or 1)

    def now(self) -> float | None:
        """Passes since the beginning of the run; None where the corpus has no known size."""
        if self._pass_steps is None:
            return None
        taken = self._run.steps_taken
        if taken < self._taken:
            self._before += self._taken
        self._taken = taken
        return (self._before + taken) / self._pass_steps


def _callback(trainer: Any) -> Any:
    """Counts on after a resume, and saves the state of this rank."""
    from transformers import TrainerCallback

    loader = trainer.loader
    epochs = Epochs(loader)

    class OfLoader(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            epochs.measure()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            # Without a length the Trainer divides the batches since it was started by max_steps.
            if control.should_log or control.should_save or control.should_evaluate:
                epochs.measure()
            done = epochs.now()
            state.epoch = state.global_step / state.max_steps if done is None else done

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
            "Resume from a checkpoint whose save was finished by this class"
            + (", and remove the files of other runs." if numbers else "."),
            path=str(checkpoint),
        )
    own = checkpoint / f"loader-{place.rank}-of-{place.world_size}.json"
    states = [json.loads(file.read_text()) for file in ([own] if own in files else files)]
    return states[0] if own in files else merge_states(states)
