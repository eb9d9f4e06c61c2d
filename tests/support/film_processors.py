"""Processors of all families that take films, made without downloads.

Tests with them are skipped before transformers 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import transformers

from tests.support.vision import SPECIAL, engine
from tests.support.whole_processors import FIVE

if not FIVE:
    pytest.skip("Most processors of films are read from transformers 5 on", allow_module_level=True)
pytest.importorskip("torchvision", reason="Processors of videos need torchvision")

_BEGINS = ("<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>")
_TOKENS = [
    *SPECIAL, *_BEGINS, "<|image|>", "<|video|>", "<|audio|>", "<image>", "<video>", "<img>",
    "</img>", "<soft>", "<IMAGE>", "<|media_begin|>", "<|media_content|>", "<|media_end|>",
    "<|media_pad|>", "<|kimi_k25_video_placeholder|>", "]<]video[>[", "]<]image[>[",
    "]<]start of image[>[", "]<]end of image[>[", "<|patch|>", "<|vid_frame_separator|>",
    "<|vid_start|>", "<|vid_end|>", "<|image_start|>", "<|image_end|>", "<fake>", "<global>",
    "<|IMAGE|>", "<|VIDEO|>", "<|IMAGE_PAD|>", "<|VIDEO_PAD|>", "<|VISION_START|>",
    "<|VISION_END|>",
]  # fmt: skip
_GEMMA = {
    "boi_token": "<img>", "eoi_token": "</img>", "image_token": "<soft>", "video_token": "<video>",
    "audio_token": "<|audio|>", "boa_token": "<img>", "eoa_token": "</img>",
}  # fmt: skip
_OMNI = {
    "image_token": "<|IMAGE|>", "video_token": "<|VIDEO|>", "audio_token": "<|audio|>",
    "vision_bos_token": "<|vision_start|>", "vision_eos_token": "<|vision_end|>",
    "audio_bos_token": "<img>", "audio_eos_token": "</img>",
}  # fmt: skip
_FOUR = {"do_sample_frames": True, "num_frames": 4}


class Made:
    """How a processor is made.

    Attributes:
        videos: class of its video processor, without "VideoProcessor", and settings of it.
        images: class of its image processor.
        tokens: tokens of the tokenizer by name.
        own: arguments of the processor.
    """

    def __init__(
        self, videos: str, settings: Mapping[str, Any], images: str, tokens: Any = None, **own: Any
    ) -> None:
        self.videos, self.settings, self.images = videos, settings, images
        self.tokens, self.own = tokens or {}, own


_LLAVA = {"patch_size": 14, "vision_feature_select_strategy": "default"}
FAMILIES = {
    "Qwen2VL": Made("Qwen2VL", _FOUR, "Qwen2VL"),
    "Qwen2_5_VL": Made("Qwen2VL", _FOUR, "Qwen2VL"),
    "Qwen3VL": Made("Qwen3VL", {}, "Qwen2VL"),
    "Qwen2_5Omni": Made("Qwen2VL", _FOUR, "Qwen2VL", _OMNI, feature_extractor=True),
    "Qwen3OmniMoe": Made("Qwen2VL", _FOUR, "Qwen2VL", _OMNI, feature_extractor=True),
    "Glm4v": Made("Glm4v", {}, "Glm4v"),
    "Glm46V": Made("Glm46V", {}, "Glm46V"),
    "Glm5Next": Made("Glm5Next", {}, "Glm5Next"),
    "CohereCompass": Made("CohereCompass", {}, "CohereCompass"),
    "Cosmos3Edge": Made("Cosmos3Edge", {"return_metadata": True}, "Cosmos3Edge"),
    "Dots3Note": Made("Qwen3VL", {}, "Qwen2VL", feature_extractor=True),
    "Exaone4_5_": Made("Qwen2VL", _FOUR, "Qwen2VL"),
    "HYV4VL": Made("HYV4VL", {"do_sample_frames": True}, "HYV4VL"),
    "HyperCLOVAXVisionV2": Made("Qwen2VL", _FOUR, "Qwen2VL"),
    "Lfm3Vl": Made("Qwen3VL", {}, "Qwen2VL"),
    "VideoLlama3": Made("VideoLlama3", {**_FOUR, "use_token_compression": False}, "VideoLlama3"),
    "Kimi_K25": Made("Kimi_K25", {}, "Kimi_K25"),
    "MiniMaxM3VL": Made("MiniMaxM3VL", {"do_sample_frames": True, "fps": 4}, "MiniMaxM3VL"),
    "MuseGlimmer": Made("MuseGlimmer", {"return_metadata": True}, "MuseGlimmer"),
    "Gemma4": Made("Gemma4", {"num_frames": 4}, "Gemma4", _GEMMA, feature_extractor=True),
    "Gemma4Unified": Made(
        "Gemma4Unified", {"num_frames": 4}, "Gemma4Unified", _GEMMA, feature_extractor=True
    ),
    "EmbeddingGemma2": Made("EmbeddingGemma2", {}, "Gemma4", _GEMMA, feature_extractor=True),
    "InternVL": Made(
        "InternVL", {**_FOUR, "size": {"height": 28, "width": 28}}, "GotOcr2",
        {
            "start_image_token": "<img>", "end_image_token": "</img>", "video_token": "<video>",
            "context_image_token": "<IMAGE>",
        }, image_seq_length=4,
    ),
    "SmolVLM": Made(
        "SmolVLM", {**_FOUR, "fps": 24}, "SmolVLM",
        {
            "image_token": "<image>", "video_token": "<video>", "fake_image_token": "<fake>",
            "global_image_token": "<global>", "end_of_utterance_token": "<|im_end|>",
        }, image_seq_len=4,
    ),
    "LlavaOnevision": Made(
        "LlavaOnevision", _FOUR, "LlavaOnevision", num_image_tokens=16,
        vision_feature_select_strategy="full",
    ),
    "LlavaNextVideo": Made("LlavaNextVideo", _FOUR, "LlavaNext", **_LLAVA),
    "VideoLlava": Made("VideoLlava", _FOUR, "CLIP", **_LLAVA, num_additional_image_tokens=1),
    "PerceptionLM": Made(
        "PerceptionLM", _FOUR, "PerceptionLM", {"image_token": "<image>", "video_token": "<video>"},
        patch_size=14, pooling_ratio=2,
    ),
}  # fmt: skip


def processor_of(family: str, **videos: Any) -> Any:
    """Return the processor of a family, with other settings of its video processor if given."""
    made = FAMILIES[family]
    kind = getattr(transformers, f"{family}Processor")
    own = type(kind.__name__, (kind,), {"check_argument_for_proper_class": lambda *given: None})
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=engine(_TOKENS), eos_token="<|endoftext|>", pad_token="<|endoftext|>",
        extra_special_tokens=made.tokens,
    )  # fmt: skip
    settings = dict(made.own)
    if settings.pop("feature_extractor", False):
        settings["feature_extractor"] = transformers.WhisperFeatureExtractor()
    return own(
        tokenizer=tokenizer,
        image_processor=getattr(transformers, f"{made.images}ImageProcessor")(),
        video_processor=getattr(transformers, f"{made.videos}VideoProcessor")(
            **{**made.settings, **videos}
        ),
        **settings,
    )
