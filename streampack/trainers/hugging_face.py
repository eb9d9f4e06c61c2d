"""Training and evaluation with a `PackedLoader` in the trainers of transformers and TRL.

`TrainerMixin` saves the loader's state on every rank in each checkpoint, so that a run can resume
from any of them on any number of ranks.

`EvaluationMixin` corrects the loss of evaluate() and predict(). The Trainer averages the losses of
batches, which is not the mean over tokens if batches have unequal numbers of loss tokens; the
mix-in weights each batch's mean by its loss tokens, over all ranks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch

from streampack.dataset import PackedDataset
from streampack.distributed.merging import merge_states
from streampack.errors import ConfigError, StateError
from streampack.forecasts.estimation import estimate_of, forecast
from streampack.hf.attention import adds_router_loss, is_of_transformers
from streampack.job.topology import Topology
from streampack.loader import PackedLoader


class Mixin:
    """Base of the mix-ins, which must come before the trainer in the bases of a class."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        *before, last = cls.__bases__
        if before and issubclass(last, Mixin):
            names = ", ".join(base.__name__ for base in before)
            raise TypeError(
                f"{last.__name__} must come before the trainer in the bases of {cls.__name__}, but "
                f"is the last. Write class {cls.__name__}({last.__name__}, {names})."
            )


class EvaluationMixin(Mixin):
    """Mix-in for a Trainer with a `PackedDataset`, or a dict of them, as ``eval_dataset=``.

    Each evaluation reads the dataset from the start. ``eval_loss`` is the mean over all its loss
    tokens.
    """

    args: Any
    accelerator: Any
    loader: PackedLoader[Any]
    eval_dataset: Any
    _loss: torch.Tensor | None = None  # (2,) loss sum and tokens of the running evaluation

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Return the loader of a `PackedDataset`, or the Trainer's for any other dataset.

        Raises:
            ConfigError: the dataset is endless.
        """
        chosen = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(chosen, str):
            chosen = self.eval_dataset[chosen]
        packed = self._packed(chosen)
        return packed or super().get_eval_dataloader(eval_dataset)  # type: ignore[misc]

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """Return the loader of a `PackedDataset`, or the Trainer's for any other dataset."""
        return self._packed(test_dataset) or super().get_test_dataloader(  # type: ignore[misc]
            test_dataset
        )

    def evaluation_loop(self, dataloader: Any, *arguments: Any, **options: Any) -> Any:
        """Run `Trainer.evaluation_loop`, with the loss of packed batches as mean over tokens."""
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
        """Run `Trainer.prediction_step`, and sum the loss of packed batches over tokens."""
        labels = inputs.get("labels") if self._loss is not None else None
        tokens = torch.zeros(()) if labels is None else labels.ne(-100).sum()
        loss, *outputs = super().prediction_step(  # type: ignore[misc]
            model, inputs, *arguments, **options
        )
        if self._loss is not None:
            tokens = tokens.to(self._loss)
            # A batch without loss tokens may have the loss 0 / 0 or None, and all ranks gather one.
            loss = tokens.new_zeros(()) if loss is None or not tokens else loss.to(tokens)
            self._loss += torch.stack([loss * tokens, tokens])
            loss = loss.float()
        return loss, *outputs

    def compute_loss(self, *arguments: Any, **options: Any) -> Any:
        """Run `Trainer.compute_loss`; an evaluation gets the mean over this rank's batch."""
        if self._loss is not None:
            options["num_items_in_batch"] = None
        return super().compute_loss(*arguments, **options)  # type: ignore[misc]

    def _reject_skip_prepare_without_labels(self, datasets: dict[str, Any], *rest: Any) -> None:
        """Exclude packed datasets from a check in TRL's `SFTTrainer` that reads column names."""
        kinds = (PackedDataset, PackedLoader)
        theirs = {name: data for name, data in datasets.items() if not isinstance(data, kinds)}
        super()._reject_skip_prepare_without_labels(theirs, *rest)  # type: ignore[misc]

    def _packed(self, dataset: Any) -> PackedLoader[Any] | None:
        """Return a loader for a `PackedDataset` or `PackedLoader`, and None for any other."""
        check_evaluated(dataset)
        if isinstance(dataset, PackedDataset):
            dataset = PackedLoader(dataset)
        if not isinstance(dataset, PackedLoader):
            return None
        dataset.transform = dataset.transform or self.loader.transform
        dataset._trains = False
        return dataset


def check_evaluated(dataset: Any) -> None:
    """Raise `ConfigError` for an endless packed dataset or its loader."""
    if isinstance(dataset, PackedLoader):
        dataset = dataset.dataset
    if isinstance(dataset, PackedDataset) and dataset.plan.config.epochs is None:
        raise ConfigError(
            "An evaluation needs a dataset with an end, got epochs=None.",
            "Pass PackedDataset.evaluation(source, ...).",
            setting="epochs",
        )


class TrainerMixin(EvaluationMixin):
    """Mix-in for a Trainer that takes batches from a `PackedLoader` and resumes its state.

    Write ``class PackedTrainer(TrainerMixin, Trainer): pass``, and likewise for TRL's
    ``SFTTrainer``. Set ``max_steps`` in the training arguments.
    ``train(resume_from_checkpoint=...)`` continues after the checkpoint's last batch, on any number
    of ranks that can read the files of all. The mix-in sets ``ignore_data_skip``, so that the
    Trainer does not skip batches as well. The ``eval_dataset`` may be a `PackedDataset`, such as
    the result of `PackedDataset.evaluation`.

    A loader without ``transform=`` delivers the arguments of `PackedBatch.hf` for the Trainer's
    model. A model of transformers is thereby checked to keep documents apart.

    Args:
        loader: loader of the model's arguments.
        allow: settings that may differ from the checkpoint that `train` resumes from; see
            `PackedLoader.load_state_dict`.
        arguments: positional arguments of the Trainer; further keyword arguments are its, too.

    Raises:
        ConfigError: `loader` is missing; the evaluation dataset is endless; accelerate divides
            sequences among ranks, or ranks with parts of one model have different batches.
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
                f"loader must be a PackedLoader, got {repr(loader)[:80]}.",
                "Pass loader=PackedLoader(dataset), and no train_dataset=.",
                setting="loader",
            )
        self.loader = loader
        if loader.transform is None:
            loader.transform = self._arguments_of
        loader._trains = False  # the Trainer counts loss tokens itself
        self._allow = allow
        args = options.get("args", arguments[1] if len(arguments) > 1 else None)
        check_parallelism(getattr(args, "parallelism_config", None), loader)
        super().__init__(*arguments, **options)
        check_parallelism(getattr(self.accelerator, "parallelism_config", None), loader)
        evaluated = self.eval_dataset
        for args in evaluated.values() if isinstance(evaluated, dict) else [evaluated]:
            check_evaluated(args)
        self.args.ignore_data_skip = True
        self.add_callback(_callback(self))  # type: ignore[attr-defined]

    def _arguments_of(self, batch: Any) -> dict[str, Any]:
        """Return the model's arguments for a batch."""
        trainer: Any = self
        if _divides(getattr(self.accelerator, "parallelism_config", None), "cp_size"):
            return whole_rows(trainer.model, batch)
        known = is_of_transformers(trainer.model)
        arguments: dict[str, Any] = batch.hf(model=trainer.model_wrapped if known else None)
        return arguments

    def get_train_dataloader(self) -> Any:
        """Return the loader itself, because accelerate would split its batches over ranks."""
        return self.loader

    def get_batch_samples(self, *arguments: Any) -> Any:
        """Run `Trainer.get_batch_samples`, with a count of at least 1 to avoid a loss of 0 / 0."""
        samples, num_items = super().get_batch_samples(*arguments)  # type: ignore[misc]
        return samples, num_items if num_items is None else num_items.clamp(min=1)

    def train(self, resume_from_checkpoint: Any = None, **options: Any) -> Any:
        """Run `Trainer.train`; the loader resumes from the checkpoint too.

        Raises:
            ConfigError: the training arguments have no ``max_steps``.
            StateError: the checkpoint has no states of the loader, or states of several runs.
        """
        if self.args.max_steps <= 0:
            accumulated = self.args.gradient_accumulation_steps
            raise ConfigError(
                f"max_steps in the training arguments must be positive, got {self.args.max_steps}.",
                "Pass max_steps=; for one pass, loader.estimate_steps().steps"
                f"{f' // {accumulated}' if accumulated > 1 else ''}.",
                setting="max_steps",
            )
        if resume_from_checkpoint is True:
            from transformers import trainer_utils

            last: Any = trainer_utils.get_last_checkpoint
            # Lets the Trainer raise its own error.
            resume_from_checkpoint = last(self.args.output_dir) or True
        if isinstance(resume_from_checkpoint, (str, os.PathLike)):
            folder = Path(resume_from_checkpoint)
            state = saved_state(folder, self.loader.dataset.topology)
            self.loader.load_state_dict(state, allow=self._allow)
        return super().train(  # type: ignore[misc]
            resume_from_checkpoint=resume_from_checkpoint, **options
        )


def check_parallelism(config: Any, loader: PackedLoader[Any]) -> None:
    """Raise `ConfigError` if accelerate's `ParallelismConfig` conflicts with a loader."""
    if config is None:
        return
    by_row = loader.dataset.plan.config.row_format.attention_by_row
    for name in ("sp_size", "cp_size"):
        if _divides(config, name) and not (by_row and name == "cp_size"):
            raise ConfigError(
                f"{name} of the parallelism_config must be 1, because accelerate's parallelism "
                "passes the model no boundaries, which keep documents apart, got "
                f"{getattr(config, name)}.",
                "Omit it, or write the loop with batch.context_parallel() (docs/sharding.md)"
                + ("." if name == "sp_size" else ', or pass attention="row" to the dataset.'),
                setting="parallelism_config",
            )
    ranks = loader.dataset.topology.world_size
    if ranks != config.data_parallel_size:
        raise ConfigError(
            "The dataset must have as many ranks as the parallelism_config has data-parallel ones, "
            f"{config.data_parallel_size}, got {ranks}.",
            'Pass topology=Topology.from_mesh(mesh, ("dp_replicate", "dp_shard")), with the '
            "dimensions that the mesh has, to the dataset.",
            setting="topology",
        )


def _divides(config: Any, name: str) -> bool:
    """Return True if this size of a `ParallelismConfig` is more than 1."""
    return (getattr(config, name, 1) or 1) > 1


def whole_rows(model: Any, batch: Any) -> dict[str, Any]:
    """Return the arguments of a model for accelerate's context parallelism of whole rows.

    accelerate drops every mask, and attends causally from the beginning of a row. So a row must be
    one segment, and rows must not be flattened.

    Raises:
        ConfigError: the model's auxiliary router loss would count padding.
    """
    if adds_router_loss(model):
        from streampack.hf.routers import refused

        raise refused(model, "would count padding under accelerate's context parallelism")
    fields = {name: getattr(batch, name) for name in ("input_ids", "position_ids", "labels")}
    return {**fields, "use_cache": False}


class Epochs:
    """Counter of passes over a corpus of known size.

    Args:
        loader: this rank's loader.
    """

    def __init__(self, loader: PackedLoader[Any]) -> None:
        self._run = loader._run
        self._pass_steps: float | None = None
        self._before = 0  # number of steps in earlier iterations
        self._taken = 0

    def measure(self) -> None:
        """Estimate the steps of a pass; takes a millisecond after the first estimate."""
        plan = self._run.plan
        if plan.config.epochs is not None:
            estimate = estimate_of(self._run)
        elif self._pass_steps is None:
            once = forecast(plan.config, plan.topology)
            estimate = None if once is None else once.steps
        else:
            return
        if estimate is not None:
            self._pass_steps = max(estimate.steps, 1) / (plan.config.epochs or 1)

    def now(self) -> float | None:
        """Return the passes since the start of the run; None if the corpus' size is unknown."""
        if self._pass_steps is None:
            return None
        taken = self._run.steps_taken
        if taken < self._taken:
            self._before += self._taken
        self._taken = taken
        return (self._before + taken) / self._pass_steps


def _callback(trainer: Any) -> Any:
    """Return a callback that keeps the epoch count across resumes and saves this rank's state."""
    from transformers import TrainerCallback

    loader = trainer.loader
    epochs = Epochs(loader)

    class OfLoader(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            epochs.measure()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            # For a loader without length the Trainer divides the batches since its start by
            # max_steps, which is wrong after a resume.
            if control.should_log or control.should_save or control.should_evaluate:
                epochs.measure()
            done = epochs.now()
            state.epoch = state.global_step / state.max_steps if done is None else done

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            folder.mkdir(parents=True, exist_ok=True)  # another rank than 0 may be first
            place = loader.dataset.topology
            path = folder / f"loader-{place.rank}-of-{place.world_size}.json"
            mine = path.with_suffix(f".{os.getpid()}")  # ranks of one model share the target file
            mine.write_text(json.dumps(loader.state_dict()))
            mine.replace(path)

    return OfLoader()


def saved_state(checkpoint: Path, place: Topology) -> dict[str, Any]:
    """Read the loader's state from a checkpoint: this rank's, or all if the number differs.

    Raises:
        StateError: the checkpoint has no states of the loader, or states of several runs.
    """
    files = sorted(checkpoint.glob("loader-*-of-*.json"))
    numbers = {file.stem.rpartition("-")[2] for file in files}
    if len(numbers) != 1:
        raise StateError(
            f"{checkpoint} must have loader states of one run, got {len(numbers)}: "
            f"{', '.join(file.name for file in files[:4]) or 'no file loader-0-of-*.json'}.",
            "Resume from a checkpoint that this class has saved completely"
            + (", and remove the files of other runs." if numbers else "."),
            path=str(checkpoint),
        )
    mine = checkpoint / f"loader-{place.rank}-of-{place.world_size}.json"
    states = [json.loads(file.read_text()) for file in ([mine] if mine in files else files)]
    return states[0] if mine in files else merge_states(states)
