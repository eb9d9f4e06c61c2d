"""Sounds, a processor and a tiny model that take them."""

from __future__ import annotations

import io
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
import transformers

pytest.importorskip("av", reason="PyAV, the extra [video]")

from tests.support.vision import fast_tokenizer

PLACE = "<|audio_bos|><|AUDIO|><|audio_eos|>"
SECONDS = 2


def sound(
    samples: int, rate: int = 16000, *, channels: int = 1, seed: int = 0, form: str = "wav",
    codec: str = "pcm_s16le", options: dict[str, str] | None = None,
) -> bytes:  # fmt: skip
    """Noise.

    Args:
        options: options of the container.
    """
    import av

    out, rng = io.BytesIO(), np.random.default_rng(seed)
    with av.open(out, "w", format=form, options=options or {}) as container:
        stream = container.add_stream(codec, rate=rate, options={"strict": "-2"})
        stream.layout = "mono" if channels == 1 else "stereo"
        stream.codec_context.open()
        values = rng.integers(-9999, 9999, (1, samples * channels), dtype=np.int16)
        frame = av.AudioFrame.from_ndarray(values, format="s16", layout=stream.layout.name)
        frame.sample_rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
        if codec != "pcm_s16le":
            resampler = av.AudioResampler(
                format=stream.codec_context.format.name, layout=stream.layout.name, rate=rate,
                frame_size=stream.codec_context.frame_size or None,
            )  # fmt: skip
            frames = [*resampler.resample(frame), *resampler.resample(None)]
        else:
            frames = [frame]
        for each in frames:
            container.mux(stream.encode(each))
        container.mux(stream.encode(None))
    return out.getvalue()


def counted(data: bytes) -> tuple[int, int]:
    """Return samples and rate of a sound that PyAV decodes whole."""
    import av

    form = "mp3" if data[:3] == b"ID3" else None  # FFmpeg does not recognise very short ones
    with av.open(io.BytesIO(data), format=form) as container:
        stream = container.streams.audio[0]
        return sum(frame.samples for frame in container.decode(stream)), stream.rate


def sound_processor(**settings: Any) -> Any:
    kind = transformers.Qwen2AudioProcessor
    own = type(kind.__name__, (kind,), {"tokenizer_class": "PreTrainedTokenizerFast"})
    special = ["<|endoftext|>", "<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>", "<|im_start|>",
               "<|im_end|>"]  # fmt: skip
    features = {"feature_size": 8, "chunk_length": SECONDS, **settings}
    return own(
        feature_extractor=transformers.WhisperFeatureExtractor(**features),
        tokenizer=fast_tokenizer(special),
    )


def sound_model(processor: Any) -> Any:
    config = transformers.Qwen2AudioConfig(
        audio_config={
            "d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 16,
            "num_mel_bins": 8, "max_source_positions": 50 * SECONDS,
        },
        text_config={
            "model_type": "qwen2", "vocab_size": 300, "hidden_size": 32, "intermediate_size": 48,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "max_position_embeddings": 512,
        },
        audio_token_index=processor.audio_token_id,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.Qwen2AudioForConditionalGeneration(config).double().train()
