"""Tiny random models, in double precision, of more families that take films; of transformers 5."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from tests.support.vision_families import TEXT

_TEXT = {**TEXT, "vocab_size": 420, "max_position_embeddings": 4096}
_ROPE = {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}}
_TOWER = {
    "depth": 1, "num_heads": 2, "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 16,
    "intermediate_size": 24, "out_hidden_size": 32, "fullatt_block_indexes": [0], "patch_size": 14,
}  # fmt: skip
_SOUNDS = {
    "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 16, "d_model": 16,
    "output_dim": 32, "n_window": 50,
}  # fmt: skip
#: The names of their classes, and settings of their parts.
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "Qwen2_5Omni": (
        "Qwen2_5OmniThinkerConfig", "Qwen2_5OmniThinkerForConditionalGeneration",
        {"text_config": {**_TEXT, **_ROPE}, "vision_config": _TOWER, "audio_config": _SOUNDS},
    ),
    "Glm46V": (
        "Glm46VConfig", "Glm46VForConditionalGeneration",
        {"text_config": {**_TEXT, **_ROPE}, "vision_config": _TOWER},
    ),
    "VideoLlava": (
        "VideoLlavaConfig", "VideoLlavaForConditionalGeneration",
        {
            "text_config": {"model_type": "llama", **_TEXT}, "image_seq_length": 256,
            "vision_config": {
                **_TOWER, "model_type": "clip_vision_model", "image_size": 224,
                "num_hidden_layers": 2,
            },
        },
    ),
}  # fmt: skip


def model_of(family: str, processor: Any) -> Any:
    """Return a model of a family of `MODELS` for its processor."""
    config, kind, parts = MODELS[family]
    vocabulary, ids = processor.tokenizer.get_vocab(), {}
    marks = {
        "vision_start": "<|vision_start|>", "vision_end": "<|vision_end|>",
        "image_start": "<|begin_of_image|>", "image_end": "<|end_of_image|>",
        "video_start": "<|begin_of_video|>", "video_end": "<|end_of_video|>",
        "image": processor.image_token, "video": processor.video_token,
        "audio": getattr(processor, "audio_token", None),
    }  # fmt: skip
    for name, token in marks.items():
        if token in vocabulary:
            ids |= {f"{name}_token_{form}": vocabulary[token] for form in ("id", "index")}
    torch.manual_seed(0)
    return getattr(transformers, kind)(getattr(transformers, config)(**parts, **ids)).double()
