"""Processors as their classes make them, with their parts for videos: these need torchvision."""

from __future__ import annotations

from typing import Any

import transformers

from tests.support.vision import engine
from tests.support.vision_families import FAMILIES

FIVE = int(transformers.__version__.partition(".")[0]) >= 5
#: Arguments of each beside its image processor and tokenizer, and tokens its tokenizer has.
SETTINGS: dict[str, dict[str, Any]] = {
    "InternVL": {"image_seq_length": 4},
    "LLaVA-OneVision": {
        "num_image_tokens": 16, "vision_feature_select_strategy": "full",
        "vision_aspect_ratio": "anyres_max_9",
    },
    "Idefics3": {"image_seq_len": 4},
    "SmolVLM": {"image_seq_len": 4},
    "Gemma 3": {"image_seq_length": 4},
}  # fmt: skip
TOKENS = {
    "InternVL": {
        "start_image_token": "<img>", "end_image_token": "</img>", "video_token": "<video>",
        "context_image_token": "<IMG_CONTEXT>",
    },
    "Gemma 3": {
        "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>",
        "image_token": "<image_soft_token>",
    },
}  # fmt: skip


def whole_processor(family: str, *, fast: bool) -> Any:
    """Return the family's processor, with the image processor of torchvision or of Pillow."""
    model = FAMILIES[family].processor()
    kind = type(model).__mro__[1]
    own = type(kind.__name__, (kind,), {"tokenizer_class": "PreTrainedTokenizerFast"})
    videos = {}
    if "video_processor" in (getattr(kind, "attributes", None) or kind.get_attributes()):
        videos["video_processor"] = getattr(
            transformers, _VIDEOS.get(family, f"{kind.__name__[:-9]}VideoProcessor")
        )()
    special = [str(token) for token in model.tokenizer.added_tokens_decoder.values()]
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=engine(special), eos_token="<|endoftext|>", pad_token="<|endoftext|>",
        extra_special_tokens=TOKENS.get(family, {}),
    )  # fmt: skip
    given = {"image_processor": model.image_processor, "tokenizer": tokenizer, **videos}
    made = own(**given, **SETTINGS.get(family, {}))
    made.image_processor = image_processor(model.image_processor, fast=fast)
    return made


_VIDEOS = {
    "Qwen2.5-VL": "Qwen2VLVideoProcessor", "LLaVA-OneVision": "LlavaOnevisionVideoProcessor",
}  # fmt: skip


def image_processor(like: Any, *, fast: bool) -> Any:
    """With the settings of another, of which transformers 5 names the slow one, and 4 the fast."""
    name = type(like).__name__.removesuffix("Pil").removesuffix("Fast")
    ending = "" if fast == FIVE else ("Fast" if fast else "Pil")
    settings = {
        key: value for key, value in like.to_dict().items()
        if value is not None and not key.endswith(("_type", "_class"))
    }  # fmt: skip
    return getattr(transformers, name + ending)(**settings)
