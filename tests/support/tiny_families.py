"""A tiny model of every family of transformers that predicts the next token, made by one rule."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

VOCABULARY = 96

#: Settings by name, in every config that has them.
SMALL: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "n_vocab", "vocab_size_per_layer_input"), VOCABULARY),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim", "embed_dim", "model_dim"), 32),
    **dict.fromkeys(
        ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"), 2
    ),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "attention_heads"), 4),
    "decoder_layers": 2,
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "multi_query_group_num"), 2),
    **dict.fromkeys(("head_dim", "attention_head_dim", "kv_channels", "rotary_dim"), 8),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "decoder_ffn_dim"), 48),
    **dict.fromkeys(("ffn_hidden_size", "shared_intermediate_size", "mlp_hidden_size"), 48),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), 66),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "moe_topk", "num_experts_per_token"), 2),
    **dict.fromkeys(("moe_intermediate_size", "expert_ffn_size", "ffn_hidden_size_moe"), 16),
    **dict.fromkeys(("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"), 16),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "num_shared_experts"), 1),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim"), 8),
    **dict.fromkeys(("v_head_dim", "global_head_dim"), 8),
    **dict.fromkeys(("qk_head_dim",), 16),
    **dict.fromkeys(("sliding_window", "window_size", "attention_window_size"), 4),
    **dict.fromkeys(("pad_token_id", "pad_id"), 0),
    **dict.fromkeys(("bos_token_id", "eos_token_id", "sep_token_id", "cls_token_id"), 1),
    **dict.fromkeys(("state_size", "mamba_d_state", "ssm_state_size", "d_state"), 8),
    **dict.fromkeys(("mamba_n_heads", "n_mamba_heads", "mamba_num_heads"), 8),
    **dict.fromkeys(("mamba_d_head", "mamba_head_dim", "mamba_headdim"), 8),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), 2),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 8),
    **dict.fromkeys(("mamba_chunk_size", "chunk_size", "mamba_dt_rank"), 8),
    **dict.fromkeys(("attention_chunk_size", "index_topk"), 4),
    "first_k_dense_replace": 1,
    "is_decoder": True,
}


class NotBuiltError(Exception):
    """A family of which the rule makes no small model."""


def families() -> list[str]:
    """Names of model types, in alphabetical order."""
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def tiny_model(family: str, attention: str, seconds: int = 10, **others: Any) -> Any:
    """A model of some ten thousand parameters with random weights.

    Args:
        family: model type.
        attention: implementation, "eager" or "sdpa"; eager where there is no other.
        seconds: for which it may take.
        others: settings of its config besides.

    Raises:
        NotBuiltError: with the reason in a few words.
    """
    names = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[family]
    name = names if isinstance(names, str) else names[0]
    with _within(seconds), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            kind = getattr(transformers, name)
            config = small_config(kind.config_class, **{**OTHERS.get(family, {}), **others})
            with torch.device("meta"):
                size = sum(p.numel() for p in kind(config).parameters())
            if size > 3_000_000:
                raise NotBuiltError(f"{size / 1e6:.0f} million parameters")
            if not getattr(kind, f"_supports_{attention}", True):
                attention = "eager"
            config._attn_implementation = attention
            torch.manual_seed(0)
            model = kind._from_config(config, attn_implementation=attention)
        except NotBuiltError:
            raise
        except Exception as error:
            raise NotBuiltError(f"{type(error).__name__}: {error}"[:200]) from error
    for parameter in model.parameters():  # some begin at zero, or nearly
        with torch.no_grad():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


#: Further settings that single families need.
OTHERS: dict[str, dict[str, Any]] = {
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 16, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "deepseek_v4": {
        "compress_rates": {"compressed_sparse_attention": 2, "heavily_compressed_attention": 4},
        "layer_types": ["compressed_sparse_attention", "heavily_compressed_attention"],
    },
    "minimax_m3_vl_text": {"index_block_size": 4, "index_topk_blocks": 1},
    "falcon_h1": {"mamba_d_ssm": 64},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm3": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 8, "head_dim": 8},
    "qwen3_next": {"full_attention_interval": 2},
    "zamba": {"num_hidden_layers": 6},
    "zamba2": {"num_hidden_layers": 6},
}


def small_config(kind: Any, **others: Any) -> Any:
    """Return a config with those settings of `SMALL` that it has, also in its sub-configs."""
    default = kind()
    settings = {name: value for name, value in SMALL.items() if name in default.to_dict()}
    if "kv_lora_rank" in settings:  # latent attention has a key for every query
        settings["num_key_value_heads"] = settings["num_attention_heads"]
    for name, part in getattr(kind, "sub_configs", {}).items():
        if name not in others and getattr(default, name, None) and hasattr(part, "model_type"):
            settings[name] = small_config(type(getattr(default, name))).to_dict()
    return kind(**{**settings, **others})


@contextmanager
def _within(seconds: int) -> Iterator[None]:
    def late(*_: Any) -> None:
        raise NotBuiltError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
