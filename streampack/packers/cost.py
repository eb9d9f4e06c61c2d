"""Cost: floating-point operations of a document in a model, from the model's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streampack.arguments import explained, real_number, whole_number
from streampack.errors import ConfigError

#: Decoders with a gate, an up and a down projection in feed-forward layers. Only these and the ones
#: in `_EXPERTS` are counted.
_GATED = {
    "arcee": False, "cohere": True, "cohere2": True, "gemma": True, "gemma2": True,
    "gemma3_text": True, "glm": True, "glm4": True, "gpt2": False, "gpt_neox": False,
    "granite": True, "helium": True, "llama": True, "ministral": True, "mistral": True,
    "nemotron": False, "olmo": True, "olmo2": True, "olmo3": True, "phi": False, "phi3": True,
    "qwen2": True, "qwen3": True, "seed_oss": True, "smollm3": True, "starcoder2": False,
}  # fmt: skip
_EXPERTS = {
    "deepseek_v2", "deepseek_v3", "glm4_moe", "gpt_oss", "mixtral", "olmoe", "qwen2_moe",
    "qwen3_moe",
}  # fmt: skip


@explained
@dataclass(frozen=True, kw_only=True)
class Cost:
    """Floating-point operations of a forward pass over one document, by its length.

    Only ratios matter where work is divided; the backward pass costs twice as much of each.

    >>> cost = Cost(token=10, pair=1, windows={2: 3})
    >>> cost([1, 4]).tolist()  # four tokens: 40, 10 pairs, and 7 in the window at 3 each
    [14.0, 71.0]

    Args:
        token: operations per token in matrix products: 2 for every weight applied to it.
        pair: operations per pair of a token and a token that it attends to, itself included, in all
            layers of full causal attention together: 4 * heads * head dimension per layer.
        windows: the same for layers of sliding-window attention, by window size in tokens.
    """

    token: float
    pair: float
    windows: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "token", real_number("token", self.token, least=0))
        object.__setattr__(self, "pair", real_number("pair", self.pair, least=0))
        windows = {
            whole_number("windows", window): real_number(f"windows[{window}]", pair, least=0)
            for window, pair in self.windows.items()
        }
        object.__setattr__(self, "windows", windows)

    def __call__(self, lengths: ArrayLike) -> NDArray[np.float64]:
        """Return the operations (N,) float64 for documents of these lengths (N,), in tokens."""
        tokens = np.asarray(lengths, dtype=np.float64)
        total = self.token * tokens + self.pair * (tokens * (tokens + 1) / 2)
        for window, pair in self.windows.items():
            seen = np.minimum(tokens, window)
            total = total + pair * (seen * (seen + 1) / 2 + (tokens - seen) * window)
        return np.asarray(total, dtype=np.float64)

    @classmethod
    def of_width(cls, width: int) -> Cost:
        """Return the cost of a layer with a feed-forward part `4 * width` wide."""
        return cls(token=24 * width**2, pair=4 * width)

    @classmethod
    def from_config(cls, config: Any) -> Cost:
        """Compute the cost for a decoder of transformers from its config, without loading weights.

        It counts the matrices of attention, feed-forward layers and experts applied to a token,
        the output layer, and attention scores and values.

        Args:
            config: a model's config; of a multimodal model its text part is used.

        Raises:
            ConfigError: the model type, or the type of a layer, is unknown.
        """
        if hasattr(config, "get_text_config"):
            config = config.get_text_config()
        kind = str(getattr(config, "model_type", type(config).__name__))
        if kind not in _GATED and kind not in _EXPERTS:
            raise _unknown(f'The config is of a "{kind}"')
        hidden, layers = config.hidden_size, config.num_hidden_layers
        weights, pair = _attention(config)
        token = layers * weights + hidden * config.vocab_size
        token += sum(_feed_forward(config, kind, layer) for layer in range(layers))
        full, windows = _layers_by_window(config, kind)
        return cls(
            token=2 * token,
            pair=full * pair,
            windows={window: number * pair for window, number in windows.items()},
        )


def _attention(config: Any) -> tuple[int, int]:
    """Return the weights applied to a token in one layer, and the operations per pair."""
    hidden, heads = int(config.hidden_size), int(config.num_attention_heads)
    if getattr(config, "kv_lora_rank", None):  # latent attention
        latent, rope, values = config.kv_lora_rank, config.qk_rope_head_dim, config.v_head_dim
        queries = heads * (config.qk_nope_head_dim + rope)
        if config.q_lora_rank is None:
            weights = hidden * queries
        else:
            weights = config.q_lora_rank * (hidden + queries)
        weights += hidden * (latent + rope)
        weights += latent * heads * (config.qk_nope_head_dim + values) + heads * values * hidden
        return int(weights), 2 * int(queries + heads * values)
    size = int(getattr(config, "head_dim", None) or hidden // heads)
    shared = int(getattr(config, "num_key_value_heads", None) or heads)
    return 2 * hidden * size * (heads + shared), 4 * heads * size


def _feed_forward(config: Any, kind: str, layer: int) -> int:
    """Return the number of weights applied to a token in the feed-forward part of a layer."""
    hidden = int(config.hidden_size)
    wide = getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None)
    wide = wide or 4 * hidden
    if kind not in _EXPERTS or not _has_experts(config, layer):
        return (3 if _GATED.get(kind, True) else 2) * hidden * int(wide)
    expert = getattr(config, "moe_intermediate_size", None) or wide
    used = config.num_experts_per_tok * expert
    used += (getattr(config, "n_shared_experts", None) or 0) * expert
    number = next(
        getattr(config, name)
        for name in ("n_routed_experts", "num_local_experts", "num_experts")
        if getattr(config, name, None) is not None
    )
    shared = getattr(config, "shared_expert_intermediate_size", None) or 0
    gate = 1 if shared else 0
    return hidden * (3 * (int(used) + int(shared)) + int(number) + gate)


def _has_experts(config: Any, layer: int) -> bool:
    dense_first = getattr(config, "first_k_dense_replace", None) or 0
    every = getattr(config, "decoder_sparse_step", None) or 1
    dense = getattr(config, "mlp_only_layers", None) or ()
    return layer >= dense_first and layer not in dense and (layer + 1) % every == 0


def _layers_by_window(config: Any, kind: str) -> tuple[int, dict[int, int]]:
    """Return the number of layers of full attention, and of window attention by window size."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        sliding = window is not None and getattr(config, "use_sliding_window", True)
        kinds = ["sliding_attention" if sliding else "full_attention"] * config.num_hidden_layers
    for attention in kinds:
        if attention not in ("full_attention", "sliding_attention"):
            raise _unknown(f'The config of this "{kind}" has a layer of type "{attention}"')
    windowed = kinds.count("sliding_attention")
    return kinds.count("full_attention"), {int(window or 0): windowed} if windowed else {}


def _unknown(fact: str) -> ConfigError:
    return ConfigError(
        f"{fact}.",
        "Pass cost=Cost(token=2 * (weights applied to a token), pair=4 * heads * head_dim * "
        "(layers of full attention)), or any function from lengths to costs.",
        setting="cost",
    )
