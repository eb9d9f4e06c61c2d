"""How processors of transformers count sounds: tokens by frames of the spectrum, and windows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from streampack.images.attachments import MediaForm


def by_four(frames: int) -> int:
    """Return the tokens of a spectrum that a convolution and a pooling halve (Qwen2-Audio)."""
    return ((frames - 1) // 2 + 1 - 2) // 2 + 1


def by_merged_four(frames: int) -> int:
    """Return the tokens of a spectrum that is halved once, and merged by four (GLM-ASR)."""
    return ((frames - 1) // 2 + 1) // 4


def by_hundred(frames: int) -> int:
    """Return the tokens of a spectrum that is halved thrice in parts of 100 frames (Qwen3-Omni)."""
    remainder = frames % 100
    for _ in range(3):
        remainder = (remainder - 1) // 2 + 1
    return remainder + frames // 100 * 13


@dataclass(frozen=True)
class SoundFamily:
    """A family of models that take spectra of Whisper's feature extractor.

    Attributes:
        tokens: number of tokens by the frames of a sound.
        mask: name of the argument that marks frames, beside "input_features".
        around: attributes of the processor with the tokens before and after a placeholder.
        is_written: the processor writes these tokens itself; otherwise texts contain them.
        is_marked: a placeholder must stand between them, since versions of transformers treat it
            in different ways otherwise.
        windows: a sound longer than the extractor's window becomes several windows.
        padded: a spectrum is computed as if silence followed up to the end of the window.
        whole: spectra keep the length of the window, which the model requires.
        least: tokens of the shortest sound.
        least_frames: frames of the shortest sound. The encoder of Qwen3-Omni pads shorter ones to
            the longest of a batch, which changes their last tokens.
        form: form in which the model takes sounds.
    """

    tokens: Callable[[int], int]
    mask: str = "input_features_mask"
    around: tuple[str, str] | None = ("audio_bos_token", "audio_eos_token")
    is_written: bool = False
    is_marked: bool = False
    windows: bool = False
    padded: bool = True
    whole: bool = True
    least: int = 1
    least_frames: int = 1
    form: MediaForm = field(default_factory=MediaForm)


_OMNI = MediaForm(axes=True)
_FLAMINGO = SoundFamily(by_four, around=None, windows=True)
#: Families by the class name of the processor.
SOUND_FAMILIES = {
    # The model takes a lone token for a placeholder that it has to expand.
    "Qwen2AudioProcessor": SoundFamily(by_four, "feature_attention_mask", is_marked=True, least=2),
    "Qwen2_5OmniProcessor": SoundFamily(by_four, "feature_attention_mask", whole=False, form=_OMNI),
    "Qwen3OmniMoeProcessor": SoundFamily(
        by_hundred,
        "feature_attention_mask",
        padded=False,
        whole=False,
        least_frames=100,
        form=_OMNI,
    ),
    "Qwen3ASRProcessor": SoundFamily(by_hundred, padded=False),
    "AudioFlamingo3Processor": _FLAMINGO,
    "MusicFlamingoProcessor": SoundFamily(by_four, is_written=True, windows=True),
    "GlmAsrProcessor": SoundFamily(by_merged_four, around=None, windows=True),
}
#: Processors whose sounds are not packed, and why.
REFUSED = {
    "GraniteSpeechProcessor": "its encoder normalizes batches, which would mix documents",
    "VoxtralProcessor": "its texts are written by mistral-common, which takes no placeholders",
    "VoxtralRealtimeProcessor": "it adds sounds to the tokens of texts, and takes no placeholders",
    **dict.fromkeys(
        ("Gemma3nProcessor", "Gemma4Processor", "Phi4MultimodalProcessor"),
        "its spectra are of an extractor of its own, and only Whisper's are read",
    ),
    **dict.fromkeys(
        ("Gemma4UnifiedProcessor", "VibeVoiceAsrProcessor", "VibeVoiceProcessor"),
        "its models take samples, and only spectra of Whisper's extractor are read",
    ),
}
