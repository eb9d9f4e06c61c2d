"""EvaluationMixin: the Trainer's evaluate() and predict() on packed batches.

The Trainer averages the losses of batches, which is not the mean over tokens where batches hold
unequal numbers of them. Here each batch's mean is weighted by its loss tokens, over all ranks.
"""

from __future__ import annotations

from typing import Any

import torch

from streampack.dataset import PackedDataset
from streampack.errors import ConfigError
from streampack.loader import PackedLoader
from streampack.trainers.mixin import Mixin


class EvaluationMixin(Mixin):
    """Makes a Trainer take a `PackedDataset` as ``eval_dataset=``, by itself or in a dict of names.

    Each evaluation reads it from its beginning. ``eval_loss`` is the mean over all its loss tokens.
    """

    args: Any
    accelerator: Any
    loader: PackedLoader
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

    def _packed(self, dataset: Any) -> PackedLoader | None:
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
            "It has no end.",
            "Pass PackedDataset.evaluation(source, ...).",
        )
