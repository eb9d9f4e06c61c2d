"""Processors, images and tiny models of families that read images, without downloads."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer as Engine
from tokenizers import decoders, models, pre_tokenizers

PATCH = 4  # pixels on each side of a patch
SPECIAL = [
    "<|endoftext|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>",
    "<|im_start|>", "<|im_end|>",
]  # fmt: skip
PLACE = "<|vision_start|><|image_pad|><|vision_end|>"


def engine(special: list[str]) -> Any:
    """A tokenizer of single bytes, with special tokens after them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Engine(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(special)
    return made


def fast_tokenizer(special: list[str], **named: Any) -> Any:
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=engine(special), eos_token="<|endoftext|>", pad_token="<|endoftext|>",
        **named,
    )  # fmt: skip


def images_alone(kind: type[Any], image_processor: Any, tokenizer: Any, **settings: Any) -> Any:
    """A processor without its part for videos, which needs torchvision."""
    alone = type(
        kind.__name__,
        (kind,),
        {
            "attributes": ["image_processor", "tokenizer"],
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
    )
    made = object.__new__(alone)
    made.image_processor, made.tokenizer = image_processor, tokenizer
    for name, value in {"chat_template": None, **settings}.items():
        setattr(made, name, value)
    return made


def qwen_processor(name: str = "Qwen2VLProcessor", **settings: Any) -> Any:
    tokenizer = fast_tokenizer(SPECIAL)
    pixels = transformers.Qwen2VLImageProcessor(
        patch_size=PATCH, merge_size=2, temporal_patch_size=2, min_pixels=(4 * PATCH) ** 2,
        max_pixels=(16 * PATCH) ** 2,
    )  # fmt: skip
    token = "<|image_pad|>"
    ids = {
        "image_token": token, "image_token_id": tokenizer.convert_tokens_to_ids(token),
        "video_token": "<|video_pad|>",
        "video_token_id": tokenizer.convert_tokens_to_ids("<|video_pad|>"),
    }  # fmt: skip
    return images_alone(getattr(transformers, name), pixels, tokenizer, **ids, **settings)


def drawn(seed: int, width: int, height: int) -> Image.Image:
    """Coloured noise, the same for a seed."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def png(image: Image.Image, form: str = "PNG", **settings: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, form, **settings)
    return out.getvalue()


def records(count: int, *, seed: int = 0, place: str = PLACE) -> list[dict[str, Any]]:
    """Texts with none to two images between words, as bytes."""
    rng = np.random.default_rng(seed)
    made = []
    for i in range(count):
        sizes = rng.integers(9, 60, (rng.integers(0, 3), 2)).tolist()
        text = f"{i}:" + "".join(f"{'ab' * int(rng.integers(0, 6))}{place}" for _ in sizes)
        images = [png(drawn(100 * i + k, w, h)) for k, (w, h) in enumerate(sizes)]
        made.append({"text": text + "z" * int(rng.integers(1, 20)), "images": images})
    return made


def qwen_model(kind: str = "Qwen2VL", **vision: Any) -> Any:
    """A tiny random model in double precision."""
    tokenizer = fast_tokenizer(SPECIAL)
    ids = {
        f"{name}_token_id": tokenizer.convert_tokens_to_ids(f"<|{token}|>")
        for name, token in (
            ("image", "image_pad"), ("video", "video_pad"),
            ("vision_start", "vision_start"), ("vision_end", "vision_end"),
        )
    }  # fmt: skip
    config = getattr(transformers, f"{kind}Config")(
        text_config={
            "vocab_size": 300, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
            "rope_scaling": {"type": "mrope", "rope_type": "default", "mrope_section": [1, 1, 2]},
        },
        vision_config={"depth": 2, "num_heads": 2, "patch_size": PATCH, **vision},
        **ids,
    )  # fmt: skip
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(config)
    return model.double().train()
