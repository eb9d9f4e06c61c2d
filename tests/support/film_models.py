"""Tiny random models of more families that take films, by one rule; of transformers 5."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from tests.support.tiny_families import small_config

_BOTH_KINDS = {"layer_types": ["sliding_attention", "full_attention"]}
_ROPE = {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 1e4}
#: Settings by name, in every part of a config that has them.
_SETTINGS: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), 420),
    **dict.fromkeys(("max_position_embeddings", "index_topk"), 4096),
    **dict.fromkeys(("out_hidden_size", "projector_hidden_size", "adapter_out_dim"), 32),
    **dict.fromkeys(("adapter_in_dim", "adapter_input_size"), 32),
    **dict.fromkeys(("index_head_dim", "downsample_hidden_size", "linear_head_dim"), 8),
    **dict.fromkeys(("index_n_heads", "linear_num_heads"), 2),
    "sliding_window": 64, "patch_size": 14, "image_size": 224, "window_size": 112, "depth": 1,
}  # fmt: skip
_PATCH_16 = {"vision_config": {"patch_size": 16}}
#: Further settings by family.
MODELS: dict[str, dict[str, Any]] = {
    "CohereCompass": {
        **_PATCH_16,
        "text_config": {
            **_BOTH_KINDS, "rope_parameters": {"full_attention": None, "sliding_attention": _ROPE}
        },
    },
    "Cosmos3Edge": {**_PATCH_16, "text_config": {"rope_parameters": _ROPE}},
    "Dots3Note": {"vision_config": {"pyramid_num_routed": [-1, 4]}},
    "Exaone4_5_": {},
    "Gemma4": _PATCH_16,
    "Glm46V": {"text_config": {"rope_parameters": _ROPE}},
    "HYV4VL": {**_PATCH_16, "text_config": {"rope_parameters": _ROPE}},
    "HyperCLOVAXVisionV2": {},
    "Kimi_K25": {"projection_hidden_size": 32},
    "LlavaNextVideo": {},
    "MiniMaxM3VL": {},
    "MuseGlimmer": {"projector_hidden_size": 32, "out_hidden_size": 128},
    "PerceptionLM": {
        "projector_pooling_ratio": 2,
        "vision_config": {
            "architecture": "vit_pe_core_large_patch14_336",
            "model_args": {
                "embed_dim": 32, "depth": 1, "num_heads": 2, "img_size": [56, 56],
                "init_values": 0.1, "global_pool": "", "use_post_transformer_norm": False,
                "ref_feat_shape": [4, 4],
            },
        },
    },
    "SmolVLM": {"vision_config": {"image_size": 364, "patch_size": 91}},
    "VideoLlama3": {},
    "VideoLlava": {"image_seq_length": 256},
}  # fmt: skip
#: Families that do not keep documents apart, on a CPU without kernels.
REFUSED: dict[str, dict[str, Any]] = {
    "EmbeddingGemma2": _PATCH_16,
    "Gemma4Unified": {
        "vision_config": {"patch_size": 16, "mm_embed_dim": 32, "output_proj_dims": 32}
    },
    "Glm5Next": {
        "text_config": {
            "qk_rope_head_dim": 0, "layer_types": ["linear_attention", "indexed_attention"],
            "num_key_value_heads": 4, "mlp_layer_types": ["dense", "sparse"],
        },
    },
    "Lfm3Vl": {},
}  # fmt: skip
#: Settings of video processors that the models need.
VIDEOS: dict[str, dict[str, Any]] = {
    "Dots3Note": {"temporal_patch_size": 1, "patch_size": 14},
    "PerceptionLM": {"size": {"height": 56, "width": 56}},
}
#: Tokens of a row in which three documents fit.
SEQ_LENS = {
    "Exaone4_5_": 1280, "Gemma4": 640, "Gemma4Unified": 640, "HyperCLOVAXVisionV2": 1280,
    "LlavaNextVideo": 640, "VideoLlama3": 1280, "VideoLlava": 2304,
}  # fmt: skip
_CLASSES = {
    "EmbeddingGemma2": "EmbeddingGemma2Model",
    "MiniMaxM3VL": "MiniMaxM3SparseForConditionalGeneration",
}
#: Parts that are missing by default.
_PARTS = {
    "EmbeddingGemma2": "Gemma4VisionConfig",
    "Gemma4": "Gemma4VisionConfig",
    "Gemma4Unified": "Gemma4UnifiedVisionConfig",
}
#: Models that take experts or films in single precision alone.
_SINGLE = ("Dots3Note", "Kimi_K25")


def model_of(family: str, processor: Any) -> Any:
    """Return a model of a family of `MODELS` or `REFUSED` for its processor."""
    own = {**MODELS, **REFUSED}[family]
    kind = getattr(transformers, f"{family}Config")
    default, parts = kind(), {}
    for name in kind.sub_configs:
        part = getattr(default, name, None)
        if part is None and name == "vision_config" and family in _PARTS:
            part = getattr(transformers, _PARTS[family])()
        if part is not None:
            has = part.to_dict()
            more = {key: value for key, value in _SETTINGS.items() if key in has}
            parts[name] = small_config(type(part), **{**more, **own.get(name, {})})
    vocabulary, ids = processor.tokenizer.get_vocab(), {}
    marks = {
        "vision_start": "<|vision_start|>", "vision_end": "<|vision_end|>",
        "image_start": "<|begin_of_image|>", "image_end": "<|end_of_image|>",
        "video_start": "<|begin_of_video|>", "video_end": "<|end_of_video|>",
        "image": getattr(processor, "image_token", None), "video": processor.video_token,
        "audio": getattr(processor, "audio_token", None),
    }  # fmt: skip
    for name, token in marks.items():
        for form in ("id", "index"):
            if token in vocabulary and hasattr(default, f"{name}_token_{form}"):
                ids[f"{name}_token_{form}"] = vocabulary[token]
    config = kind(**{**own, **parts, **ids})
    for each in [config, *parts.values()]:
        each._experts_implementation = "eager"  # the usual one takes no double precision
    torch.manual_seed(0)
    model = getattr(transformers, _CLASSES.get(family, f"{family}ForConditionalGeneration"))(config)
    return model.float() if family in _SINGLE else model.double()
