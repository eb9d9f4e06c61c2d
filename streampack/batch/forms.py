"""Form: what iterating a loader gives, made from its batches."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from streampack.arguments import one_of
from streampack.errors import ConfigError

if TYPE_CHECKING:
    from streampack.batch.packed_batch import PackedBatch

logger = logging.getLogger(__name__)

Output = Literal["batch", "hf", "numpy", "samples"]


@dataclass(frozen=True)
class Form:
    """What the loop gets: the batch itself, or what its method of that name gives."""

    output: Output = "batch"
    model: Any = None

    def __post_init__(self) -> None:
        one_of("output", self.output, get_args(Output), "It says what the loop gets.")
        if self.model is not None and self.output != "hf":
            raise ConfigError(
                'model was passed, and output is not "hf".',
                "No arguments are made for it.",
                'Pass output="hf", or call batch.hf(model=model) in the loop.',
            )

    def check_place(self, device: Any, pin_memory: bool) -> None:
        """Raise `ConfigError` unless what the loop gets can lie there."""
        if device is not None and pin_memory:
            raise ConfigError(
                f"pin_memory is True and device is {device!r}.",
                "Batches are copied to the device from page-locked memory already, and what the "
                "loop gets lies on the device.",
                "Leave out pin_memory.",
            )
        if self.output == "numpy" and (device is not None or pin_memory):
            raise ConfigError(
                f'output is "numpy", device is {device!r}, and pin_memory is {pin_memory}.',
                "Arrays of numpy lie in the host's ordinary memory.",
                "Leave out device and pin_memory, and copy the arrays in the loop: "
                "jax.device_put(arrays).",
            )

    def say_left_out(self, fields: Collection[str]) -> None:
        """Warn if what the loop gets lacks the dataset's fields of these names."""
        if self.output == "hf" and fields:
            logger.warning(
                'output="hf" gives the arguments of the model, without %s. Take batches instead, '
                'output="batch", which have batch.fields, batch.document_fields and batch.hf().',
                ", ".join(sorted(fields)),
            )

    def __call__(self, batch: PackedBatch) -> Any:
        """A batch as the loop gets it."""
        if self.output == "batch":
            return batch
        options = {"model": self.model} if self.output == "hf" else {}
        return getattr(batch, self.output)(**options)
