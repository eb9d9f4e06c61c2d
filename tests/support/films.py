"""Processors and tiny models that take films, and the results that they have by themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers

pytest.importorskip("torchvision", reason="Processors of videos need torchvision")

from tests.support.vision import PATCH, engine, fast_tokenizer, qwen_processor
from tests.support.vision import SPECIAL as TOKENS
from tests.support.whole_processors import FIVE

FAMILIES = {"Qwen2-VL": "Qwen2VL", "Qwen2.5-VL": "Qwen2_5_VL", "Qwen3-VL": "Qwen3VL"}
PLACE = "<|vision_start|><|video_pad|><|vision_end|>"


def film_processor(family: str = "Qwen2-VL", **videos: Any) -> Any:
    """A processor that samples two frames a second, of patches of 4 pixels."""
    name = FAMILIES[family]
    kind = getattr(transformers, f"{name}Processor")
    own = type(kind.__name__, (kind,), {"tokenizer_class": "PreTrainedTokenizerFast"})
    part = "Qwen3VL" if family == "Qwen3-VL" else "Qwen2VL"
    settings = {
        "patch_size": PATCH, "merge_size": 2, "temporal_patch_size": 2, "do_sample_frames": True,
        "fps": 2, "size": {"shortest_edge": 16 * 16, "longest_edge": 40 * 40 * 6}, **videos,
    }  # fmt: skip
    if FIVE:
        settings.setdefault("cap_pixels_per_frame", False)
    return own(
        image_processor=qwen_processor().image_processor,
        tokenizer=fast_tokenizer(TOKENS),
        video_processor=getattr(transformers, f"{part}VideoProcessor")(**settings),
    )


def as_processed(
    processor: Any, text: str, films: list[np.ndarray], rates: list[float], **more: Any
) -> Any:
    """Return the processor's own result for a text and films that are decoded whole."""
    metadata = [
        {
            "total_num_frames": len(film), "fps": rate, "height": film.shape[1],
            "width": film.shape[2], "duration": len(film) / rate,
        }
        for film, rate in zip(films, rates, strict=True)
    ]  # fmt: skip
    videos = [torch.from_numpy(np.ascontiguousarray(film)).permute(0, 3, 1, 2) for film in films]
    return processor(
        text=[text], videos=videos, video_metadata=metadata, return_tensors="pt",
        **more,
    )  # fmt: skip


def film_model(family: str) -> Any:
    from tests.support.vision_families import FAMILIES as IMAGES

    return IMAGES[family].model(IMAGES[family].processor())


#: Other families with a tiny model: the names of their classes, tokens by name, settings of the
#: part for videos, and arguments.
_OTHERS: dict[str, Any] = {
    "GLM-4V": (
        "Glm4v", {}, {
            "patch_size": PATCH, "temporal_patch_size": 2,
            "size": {"shortest_edge": 16 * 16 * 2, "longest_edge": 24 * 24 * 6},
        }, {},
    ),
    "InternVL": (
        "InternVL", {
            "start_image_token": "<img>", "end_image_token": "</img>", "video_token": "<video>",
            "context_image_token": "<IMG_CONTEXT>",
        }, {"size": {"height": 16, "width": 16}, "num_frames": 3}, {"image_seq_length": 4},
    ),
    "LLaVA-OneVision": (
        "LlavaOnevision", {},
        {"size": {"height": 16, "width": 16}, "num_frames": 3},
        {"num_image_tokens": 16, "vision_feature_select_strategy": "full"},
    ),
}  # fmt: skip
MODELS = [*FAMILIES, *(_OTHERS if FIVE else ())]


def with_model(family: str) -> tuple[Any, Any]:
    """Return the processor and a tiny model of a family of `MODELS`."""
    if family in FAMILIES:
        return film_processor(family), film_model(family)
    from tests.support.vision_families import FAMILIES as IMAGES

    name, tokens, videos, settings = _OTHERS[family]
    alone = IMAGES[family].processor()
    special = [str(token) for token in alone.tokenizer.added_tokens_decoder.values()]
    more = ["<|begin_of_video|>", "<|end_of_video|>"] if family == "GLM-4V" else []
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=engine([*special, *more]), eos_token="<|endoftext|>",
        pad_token="<|endoftext|>", extra_special_tokens=tokens,
    )  # fmt: skip
    kind = getattr(transformers, f"{name}Processor")
    processor = type(kind.__name__, (kind,), {"tokenizer_class": "PreTrainedTokenizerFast"})(
        image_processor=alone.image_processor,
        tokenizer=tokenizer,
        video_processor=getattr(transformers, f"{name}VideoProcessor")(
            do_sample_frames=True, **videos
        ),
        **settings,
    )
    return processor, IMAGES[family].model(processor)
