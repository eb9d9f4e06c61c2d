"""Processors and tiny random models in double precision of families that take sounds."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import transformers

from tests.support.sounds import PLACE, sound_model, sound_processor
from tests.support.vision import fast_tokenizer
from tests.support.whole_processors import FIVE

SECONDS = 2
TEXT = {
    "vocab_size": 320, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "max_position_embeddings": 512, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
TOWER = {"num_mel_bins": 8, "encoder_layers": 1, "encoder_attention_heads": 2,
         "encoder_ffn_dim": 16, "d_model": 16}  # fmt: skip
OMNI = {
    "audio_token": "<|AUDIO|>", "image_token": "<|IMAGE|>", "video_token": "<|VIDEO|>",
    "audio_bos_token": "<|audio_bos|>", "audio_eos_token": "<|audio_eos|>",
    "vision_bos_token": "<|vision_bos|>", "vision_eos_token": "<|vision_eos|>",
}  # fmt: skip


class Example(NamedTuple):
    """A family: its processor, the text that stands for a sound, its model."""

    processor: Callable[[], Any]
    place: str
    model: Callable[[Any], Any]
    longest: int = 16000 * SECONDS
    shortest: float = 0  # in seconds


def tokenizer_with(tokens: dict[str, str]) -> Any:
    made = fast_tokenizer(["<|endoftext|>", *tokens.values()])
    for name, token in tokens.items():
        setattr(made, name, token)
        setattr(made, f"{name}_id", made.convert_tokens_to_ids(token))
    return made


def extractor() -> Any:
    return transformers.WhisperFeatureExtractor(feature_size=8, chunk_length=SECONDS)


def random_model(kind: str, config: Any) -> Any:
    torch.manual_seed(0)
    return getattr(transformers, f"{kind}ForConditionalGeneration")(config).double().train()


def omni_processor(name: str) -> Any:
    """A processor of Qwen-Omni, without its part for videos where torchvision is missing."""
    kind = getattr(transformers, name)
    own = type(kind.__name__, (kind,), {"tokenizer_class": "PreTrainedTokenizerFast"})
    pixels = transformers.Qwen2VLImageProcessor(patch_size=4, merge_size=2)
    tokenizer = tokenizer_with(OMNI)
    if FIVE:
        videos = transformers.Qwen2VLVideoProcessor(patch_size=4, merge_size=2)
        return own(pixels, videos, extractor(), tokenizer)
    made = object.__new__(own)
    made.image_processor, made.video_processor = pixels, SimpleNamespace(merge_size=2)
    made.feature_extractor, made.tokenizer, made.chat_template = extractor(), tokenizer, None
    for token, text in OMNI.items():
        setattr(made, token, text)
    return made


def omni_ids(processor: Any) -> dict[str, int]:
    ids = {
        name.removesuffix("_token").replace("bos", "start").replace("eos", "end"):
            processor.tokenizer.convert_tokens_to_ids(token)
        for name, token in OMNI.items()
    }  # fmt: skip
    return {f"{name}_token_{form}": own for name, own in ids.items() for form in ("id", "index")}


ROPE = {"rope_type": "default", "type": "default", "mrope_section": [1, 1, 2]}


def omni_text(**more: Any) -> dict[str, Any]:
    scaling = {"rope_parameters": {**ROPE, "rope_theta": 1e4}} if FIVE else {"rope_scaling": ROPE}
    return {**TEXT, **scaling, **more}


VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "patch_size": 4,
          "spatial_merge_size": 2, "out_hidden_size": 32}  # fmt: skip


def omni2_model(processor: Any) -> Any:
    config = transformers.Qwen2_5OmniThinkerConfig(
        audio_config={**TOWER, "n_window": 20, "output_dim": 32, "max_source_positions": 1500},
        vision_config=VISION, text_config=omni_text(), **omni_ids(processor),
    )  # fmt: skip
    return random_model("Qwen2_5OmniThinker", config)


def omni3_model(processor: Any) -> Any:
    text = omni_text(
        moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2, mlp_only_layers=[],
        decoder_sparse_step=1,
    )  # fmt: skip
    tower = {**TOWER, "n_window": 50, "n_window_infer": 100, "output_dim": 32,
             "downsample_hidden_size": 8, "max_source_positions": 1500}  # fmt: skip
    config = transformers.Qwen3OmniMoeThinkerConfig(
        audio_config=tower, vision_config={**VISION, "deepstack_visual_indexes": [0]},
        text_config=text, **omni_ids(processor),
    )  # fmt: skip
    config.text_config._experts_implementation = "eager"  # the usual one takes no double precision
    return random_model("Qwen3OmniMoeThinker", config)


FAMILIES: dict[str, Example] = {
    "Qwen2-Audio": Example(sound_processor, PLACE, sound_model),
    "Qwen2.5-Omni": Example(lambda: omni_processor("Qwen2_5OmniProcessor"), PLACE, omni2_model),
    "Qwen3-Omni": Example(
        lambda: omni_processor("Qwen3OmniMoeProcessor"), PLACE, omni3_model,
        16000 * (5 if FIVE else SECONDS), 1.1,  # transformers 4 cuts
    ),
}  # fmt: skip


# ------------------------------------------------------------------------- only in transformers 5


def small_processor(name: str, **tokens: str) -> Any:
    kind = getattr(transformers, name)
    own = type(kind.__name__, (kind,), {"tokenizer_class": "PreTrainedTokenizerFast"})
    features = extractor()
    if name == "Qwen3ASRProcessor":
        features = transformers.Qwen3ASRFeatureExtractor(feature_size=8, chunk_length=SECONDS)
    return own(feature_extractor=features, tokenizer=tokenizer_with(tokens))


def qwen2_text() -> dict[str, Any]:
    return {"model_type": "qwen2", **{k: v for k, v in TEXT.items() if k != "head_dim"}}


def flamingo_model(kind: str, processor: Any, **more: Any) -> Any:
    tower = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
             "intermediate_size": 16, "max_source_positions": 50 * SECONDS,
             "model_type": "audioflamingo3_encoder", **TOWER}  # fmt: skip
    config = getattr(transformers, f"{kind}Config")(
        audio_config=tower, text_config=qwen2_text(), audio_token_id=processor.audio_token_id,
        **more,
    )  # fmt: skip
    return random_model(kind, config)


def music_model(processor: Any) -> Any:
    ids = processor.tokenizer.convert_tokens_to_ids
    around = {
        "audio_bos_token_id": ids(processor.audio_bos_token),
        "audio_eos_token_id": ids(processor.audio_eos_token),
    }
    return flamingo_model("MusicFlamingo", processor, **around)


def glm_model(processor: Any) -> Any:
    tower = {"num_mel_bins": 8, "hidden_size": 16, "intermediate_size": 64, "num_hidden_layers": 1,
             "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8,
             "max_position_embeddings": 100}  # fmt: skip
    text = {"model_type": "llama", **TEXT}
    config = transformers.GlmAsrConfig(
        audio_config=tower, text_config=text, audio_token_id=processor.audio_token_id
    )
    return random_model("GlmAsr", config)


def asr_model(processor: Any) -> Any:
    tower = {**TOWER, "n_window": 50, "n_window_infer": 100, "output_dim": 32,
             "downsample_hidden_size": 8, "max_position_embeddings": 1500}  # fmt: skip
    config = transformers.Qwen3ASRConfig(
        audio_config=tower, text_config={"model_type": "qwen3", **TEXT},
        audio_token_id=processor.audio_token_id,
    )  # fmt: skip
    return random_model("Qwen3ASR", config)


if FIVE:
    FAMILIES |= {
        "Audio Flamingo 3": Example(
            lambda: small_processor("AudioFlamingo3Processor", audio_token="<sound>"), "<sound>",
            lambda processor: flamingo_model("AudioFlamingo3", processor), 5 * 16000,
        ),
        "Music Flamingo": Example(
            lambda: small_processor(
                "MusicFlamingoProcessor", audio_token="<sound>", audio_bos_token="<|sound_bos|>",
                audio_eos_token="<|sound_eos|>",
            ),
            "<sound>", music_model, 5 * 16000,
        ),
        "GLM-ASR": Example(
            lambda: small_processor("GlmAsrProcessor", audio_token="<|pad|>"), "<|pad|>",
            glm_model, 5 * 16000,
        ),
        "Qwen3-ASR": Example(
            lambda: small_processor("Qwen3ASRProcessor", **OMNI), PLACE, asr_model, 5 * 16000,
        ),
    }  # fmt: skip
