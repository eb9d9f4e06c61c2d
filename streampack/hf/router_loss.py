"""The auxiliary loss of routers, computed beside a model of transformers.

A family that keeps documents apart by a mask alone takes this mask for one of padding in its own
auxiliary loss, and fails. Without `output_router_logits` it works, but its routers go unbalanced.
`RouterLoss` lets such a model run without the loss, records the logits of its routers, and computes
the family's own loss of the slots that are not padding.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from inspect import signature
from typing import TYPE_CHECKING, Any

from torch import Tensor

from streampack.errors import ConfigError
from streampack.hf.attention import adds_router_loss, config_of, unwrapped

if TYPE_CHECKING:
    from typing_extensions import Self

    from streampack.batch.packed_batch import PackedBatch


class RouterLoss:
    """Recorder of the router logits of a mixture of experts, for its auxiliary loss.

    It is needed by families that `hf` refuses with ``output_router_logits=True``. Leave that False
    in the config, and add the loss with the config's own factor:

    >>> def loss_of(model, batch):
    ...     with RouterLoss(model) as routed:
    ...         output = model(**batch.hf(model=model))
    ...     return output.loss + model.config.router_aux_loss_coef * routed.loss(batch)

    Args:
        model: a causal language model of transformers, wrapped for training or not.

    Raises:
        ConfigError: the family has no auxiliary loss, or the config turns it on.
    """

    def __init__(self, model: Any) -> None:
        self._model = unwrapped(model)
        self._loss = _loss_of(self._model)
        if adds_router_loss(self._model):
            raise _refused(
                self._model,
                "has output_router_logits=True",
                "Set output_router_logits=False in its config.",
            )
        if "num_keys" in signature(self._loss).parameters and self._model.config.is_moe:
            raise _refused(
                self._model,
                "has routers that mix the tokens of a batch",
                "Set is_moe=False in its config.",
            )
        self._logits: tuple[Tensor, ...] | None = None

    def __enter__(self) -> Self:
        base = self._model.get_decoder()  # `base_model` is the model itself in some families
        self._hooks = (
            base.register_forward_pre_hook(_ask, with_kwargs=True),
            base.register_forward_hook(self._keep),
        )
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _keep(self, module: Any, arguments: Any, output: Any) -> None:
        layers = getattr(output, "router_logits", None) or ()
        self._logits = tuple(layer for layer in layers if layer is not None)  # None: dense

    def loss(self, batch: PackedBatch) -> Tensor:
        """Return the auxiliary loss of the last call over the batch's tokens, without the factor.

        It equals the loss of the same tokens in one batch without padding. It is 0 for a batch of
        padding alone. In a group of `PackedLoader.accumulate` it is divided by the number of
        batches, so that the sum over the group is their mean.

        Args:
            batch: the batch of the last call of the model in the ``with`` block.

        Raises:
            ConfigError: the model was not called with this batch, or has no routers.
        """
        if self._logits == ():
            raise _refused(self._model, "has no routers")
        tokens, slots = batch.num_tokens, batch.rows * batch.seq_len
        sizes = {layer.shape[:-1].numel() for layer in self._logits or ()}
        if len(sizes) != 1 or not sizes <= {tokens, slots}:
            raise ConfigError(
                f"The model must be called with the batch of {slots} slots in the with block, got "
                f"router logits of {sorted(sizes) or 'no'} slots.",
                "Call model(**batch.hf(model=model)) in the block, with the same batch.",
                setting="batch",
            )
        assert self._logits is not None
        layers = [layer.reshape(-1, layer.shape[-1]) for layer in self._logits]
        if not tokens:
            return layers[0].sum() * 0
        if sizes != {tokens}:
            real = ~batch.padding_mask.view(-1)
            layers = [layer[real.to(layer.device)] for layer in layers]
        config = config_of(self._model)
        chosen = getattr(self._model, "num_experts_per_tok", None) or config.num_experts_per_tok
        experts = layers[0].shape[-1]
        loss: Tensor = self._loss(tuple(layers), experts, top_k=chosen, attention_mask=None)
        return loss / batch._step_batches


def _loss_of(model: Any) -> Callable[..., Tensor]:
    """Return the function for the auxiliary loss in the module of the model's family.

    The class may be derived from the family's, as `fully_shard` does.

    Raises:
        ConfigError: the family has none.
    """
    for kind in type(model).__mro__:
        function: Callable[..., Tensor] | None = getattr(
            sys.modules[kind.__module__], "load_balancing_loss_func", None
        )
        if function is not None:
            return function
    raise _refused(model, "has no auxiliary loss in transformers")


def _refused(model: Any, has: str, advice: str = "Use loss(), which is enough.") -> ConfigError:
    return ConfigError(
        "model must be a mixture of experts with an auxiliary loss that its config leaves "
        f"out, but {type(model).__name__} {has}.",
        advice,
        setting="model",
    )


def _ask(module: Any, arguments: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    return arguments, {**options, "output_router_logits": True}
