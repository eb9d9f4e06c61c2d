"""A processor and a tiny random model in double precision of every family that reads images."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
import transformers

from tests.support.vision import PATCH, fast_tokenizer, images_alone, qwen_model, qwen_processor

TEXT = {
    "vocab_size": 320, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "max_position_embeddings": 512, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
TOWER = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "patch_size": PATCH,
}  # fmt: skip


class Example(NamedTuple):
    """A family: its processor, the text that stands for an image, its model."""

    processor: Callable[[], Any]
    place: str
    model: Callable[[Any], Any]


def ids_of(tokenizer: Any, **tokens: str) -> dict[str, Any]:
    """Each token as text, and as an id under its name with "_id"."""
    return {
        **tokens,
        **{f"{name}_id": tokenizer.convert_tokens_to_ids(own) for name, own in tokens.items()},
    }


def random_model(kind: str, config: Any) -> Any:
    torch.manual_seed(0)
    return getattr(transformers, f"{kind}ForConditionalGeneration")(config).double().train()


# ---------------------------------------------------------------------------------- Qwen, GLM


def glm_processor() -> Any:
    special = ["<|endoftext|>", "<|begin_of_image|>", "<|image|>", "<|end_of_image|>", "<|video|>"]
    tokenizer = fast_tokenizer(special)
    pixels = transformers.Glm4vImageProcessor(
        patch_size=PATCH, merge_size=2, temporal_patch_size=2,
        size={"shortest_edge": (4 * PATCH) ** 2 * 2, "longest_edge": (16 * PATCH) ** 2 * 2},
    )  # fmt: skip
    named = ids_of(tokenizer, image_token="<|image|>", video_token="<|video|>")
    more = {"video_start_id": 1, "video_end_id": 2}  # of transformers 5
    return images_alone(transformers.Glm4vProcessor, pixels, tokenizer, **named, **more)


def glm_model(processor: Any) -> Any:
    named = {
        "image_token_id": processor.image_token_id, "video_token_id": processor.video_token_id,
        "image_start_token_id": processor.tokenizer.convert_tokens_to_ids("<|begin_of_image|>"),
        "image_end_token_id": processor.tokenizer.convert_tokens_to_ids("<|end_of_image|>"),
        "video_start_token_id": 1, "video_end_token_id": 2,
    }  # fmt: skip
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2]}
    config = transformers.Glm4vConfig(
        text_config={**TEXT, "rope_scaling": rope, "partial_rotary_factor": 1.0},
        vision_config={
            "depth": 2, "hidden_size": 16, "num_heads": 2, "intermediate_size": 24,
            "out_hidden_size": 32, "patch_size": PATCH, "image_size": 32,
        },
        **named,
    )  # fmt: skip
    return random_model("Glm4v", config)


def qwen3_model(processor: Any) -> Any:
    return qwen_model(
        "Qwen3VL", hidden_size=16, intermediate_size=24, out_hidden_size=32,
        num_position_embeddings=64, deepstack_visual_indexes=[0],
    )  # fmt: skip


# ---------------------------------------------------------------------------------- tiles


def internvl_processor() -> Any:
    tokenizer = fast_tokenizer(["<|endoftext|>", "<img>", "<IMG_CONTEXT>", "</img>", "<video>"])
    pixels = transformers.GotOcr2ImageProcessor(
        size={"height": 16, "width": 16}, crop_to_patches=True, min_patches=1, max_patches=4
    )
    named = ids_of(
        tokenizer, start_image_token="<img>", end_image_token="</img>", video_token="<video>",
        image_token="<IMG_CONTEXT>",
    )  # fmt: skip
    return images_alone(
        transformers.InternVLProcessor,
        pixels,
        tokenizer,
        image_seq_length=4,
        multimodal_pattern=re.compile("(?P<image><IMG_CONTEXT>)|(?P<video><video>)"),
        **named,
    )


def internvl_model(processor: Any) -> Any:
    config = transformers.InternVLConfig(
        text_config={**TEXT, "model_type": "qwen2"},
        vision_config={**TOWER, "image_size": [16, 16], "patch_size": [PATCH, PATCH]},
        image_token_id=processor.image_token_id, image_seq_length=4,
    )  # fmt: skip
    return random_model("InternVL", config)


def onevision_processor() -> Any:
    tokenizer = fast_tokenizer(["<|endoftext|>", "<image>", "<video>"])
    pixels = transformers.LlavaOnevisionImageProcessor(
        size={"height": 16, "width": 16},
        image_grid_pinpoints=[[16, 16], [16, 32], [32, 16], [32, 32]],
    )
    named = ids_of(tokenizer, image_token="<image>", video_token="<video>")
    return images_alone(
        transformers.LlavaOnevisionProcessor, pixels, tokenizer, num_image_tokens=16,
        vision_feature_select_strategy="full", vision_aspect_ratio="anyres_max_9", **named,
    )  # fmt: skip


def onevision_model(processor: Any) -> Any:
    config = transformers.LlavaOnevisionConfig(
        text_config={**TEXT, "model_type": "qwen2"},
        vision_config={**TOWER, "model_type": "siglip_vision_model", "image_size": 16},
        image_token_index=processor.image_token_id, video_token_index=processor.video_token_id,
        image_grid_pinpoints=processor.image_processor.image_grid_pinpoints,
        vision_feature_select_strategy="full", vision_feature_layer=-1,
    )  # fmt: skip
    return random_model("LlavaOnevision", config)


def idefics_processor() -> Any:
    rows = [f"<row_{r}_col_{c}>" for r in range(1, 4) for c in range(1, 4)]
    special = ["<|endoftext|>", "<fake_token_around_image>", "<image>", "<global-img>", *rows]
    tokenizer = fast_tokenizer([*special, "<end_of_utterance>"])
    pixels = transformers.Idefics3ImageProcessor(
        size={"longest_edge": 32}, max_image_size={"longest_edge": 16}
    )
    return images_alone(
        transformers.Idefics3Processor, pixels, tokenizer, image_seq_len=4,
        image_token="<image>", image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        fake_image_token="<fake_token_around_image>", global_image_tag="<global-img>",
        fake_image_token_id=0, global_image_token_id=0, row_col_ids=[],
        end_of_utterance_token="<end_of_utterance>",
    )  # fmt: skip


def smolvlm_processor() -> Any:
    """Its module imports torchvision."""
    made = idefics_processor()
    pixels = transformers.SmolVLMImageProcessor(
        size={"longest_edge": 32}, max_image_size={"longest_edge": 16}
    )
    return images_alone(
        transformers.SmolVLMProcessor, pixels, made.tokenizer, image_seq_len=4,
        image_token="<image>", image_token_id=made.image_token_id, video_token="<video>",
        fake_image_token="<fake_token_around_image>", global_image_token="<global-img>",
    )  # fmt: skip


def idefics_model(processor: Any, kind: str = "Idefics3") -> Any:
    config = getattr(transformers, f"{kind}Config")(
        text_config={**TEXT, "model_type": "llama"},
        vision_config={**TOWER, "image_size": 16},
        image_token_id=processor.image_token_id, scale_factor=2, pad_token_id=0,
    )  # fmt: skip
    return random_model(kind, config)


# ---------------------------------------------------------------------------------- Gemma


def gemma_processor() -> Any:
    special = ["<|endoftext|>", "<start_of_image>", "<image_soft_token>", "<end_of_image>"]
    named = {"boi_token": special[1], "image_token": special[2], "eoi_token": special[3]}
    tokenizer = fast_tokenizer(special, extra_special_tokens=named)
    kind = transformers.Gemma3Processor
    kind = type(kind.__name__, (kind,), {"tokenizer_class": "PreTrainedTokenizerFast"})
    pixels = transformers.Gemma3ImageProcessor(size={"height": 16, "width": 16})
    return kind(pixels, tokenizer, image_seq_length=4)


def gemma_model(processor: Any) -> Any:
    config = transformers.Gemma3Config(
        text_config={**TEXT, "sliding_window": 16, "query_pre_attn_scalar": 8},
        vision_config={**TOWER, "image_size": 16},
        image_token_index=processor.tokenizer.image_token_id, mm_tokens_per_image=4,
    )  # fmt: skip
    model = random_model("Gemma3", config)
    model.model.multi_modal_projector.mm_input_projection_weight.data.normal_()  # zeros at first
    return model


_QWEN = "<|vision_start|><|image_pad|><|vision_end|>"
FAMILIES = {
    "Qwen2-VL": Example(
        qwen_processor, _QWEN,
        lambda _: qwen_model("Qwen2VL", embed_dim=16, hidden_size=32, mlp_ratio=2),
    ),
    "Qwen2.5-VL": Example(
        lambda: qwen_processor("Qwen2_5_VLProcessor"), _QWEN,
        lambda _: qwen_model(
            "Qwen2_5_VL", hidden_size=16, intermediate_size=24, out_hidden_size=32,
            window_size=16, fullatt_block_indexes=[1],
        ),
    ),
    "Qwen3-VL": Example(lambda: qwen_processor("Qwen3VLProcessor"), _QWEN, qwen3_model),
    "GLM-4V": Example(
        glm_processor, "<|begin_of_image|><|image|><|end_of_image|>", glm_model
    ),
    "InternVL": Example(internvl_processor, "<IMG_CONTEXT>", internvl_model),
    "LLaVA-OneVision": Example(onevision_processor, "<image>", onevision_model),
    "Idefics3": Example(idefics_processor, "<image>", idefics_model),
    "Gemma 3": Example(gemma_processor, "<start_of_image>", gemma_model),
}  # fmt: skip
if find_spec("torchvision") is not None:
    FAMILIES["SmolVLM"] = Example(
        smolvlm_processor, "<image>", lambda made: idefics_model(made, "SmolVLM")
    )
