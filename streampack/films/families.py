"""Families of processors that take films, by the class name of the processor.

Their processors count by themselves; `FilmPlanner` calls them with the shape of a film. The table
has the differences between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streampack.errors import ConfigError

_VISION = "<|vision_start|>{}<|vision_end|>"
_GLM = "<|begin_of_video|>{}<|end_of_video|>"


@dataclass(frozen=True, slots=True)
class FilmFamily:
    """Properties that processors of one class share.

    Attributes:
        written: format of the placeholder in templates, for records without one.
        features: attribute of the processor with the token that gets the features of films.
        axes: positions of models have three more axes, as `MediaForm.axes`; of families with images
            the form of images decides.
        apart: models take no images in a batch with films.
        timed: in transformers 4 the processor replaces the tokens around the placeholder.
        resizes: frames that have the size after the resize need none.
        copies: the processor copies the values of frames when it counts.
        alike: models take the films of a batch only with the same number of frames.
        sound: in transformers 5 models take the sound inside films, by `load_audio_from_video` of
            the processor.
        by_values: setting of the video processor with which counts depend on the values of pixels.
        since_5: the processor is read from transformers 5 on.
    """

    written: str = "{}"
    features: str = "video_token"
    axes: bool = False
    apart: bool = False
    timed: bool = False
    resizes: bool = True
    copies: bool = False
    alike: bool = False
    sound: bool = False
    by_values: str = ""
    since_5: bool = True


FILM_FAMILIES = {
    "Qwen2VLProcessor": FilmFamily(_VISION, since_5=False),
    "Qwen2_5_VLProcessor": FilmFamily(_VISION, since_5=False),
    "Qwen3VLProcessor": FilmFamily(_VISION, timed=True, since_5=False),
    "Qwen2_5OmniProcessor": FilmFamily("<|vision_bos|>{}<|vision_eos|>", axes=True, sound=True),
    "Qwen3OmniMoeProcessor": FilmFamily(_VISION, axes=True, sound=True),
    "Glm4vProcessor": FilmFamily(_GLM, "image_token", axes=True, apart=True),
    "Glm46VProcessor": FilmFamily(_GLM, "image_token", axes=True),
    "Glm5NextProcessor": FilmFamily(_GLM, "image_token", resizes=False),
    "CohereCompassProcessor": FilmFamily(axes=True),
    "Cosmos3EdgeProcessor": FilmFamily(axes=True),
    "Dots3NoteProcessor": FilmFamily(),
    "Exaone4_5_Processor": FilmFamily(),
    "HYV4VLProcessor": FilmFamily(axes=True),
    "HyperCLOVAXVisionV2Processor": FilmFamily(),
    "Lfm3VlProcessor": FilmFamily(),
    "VideoLlama3Processor": FilmFamily(copies=True, by_values="use_token_compression"),
    "Kimi_K25Processor": FilmFamily(),
    "MiniMaxM3VLProcessor": FilmFamily(),
    "MuseGlimmerProcessor": FilmFamily(),
    "Gemma4Processor": FilmFamily(),
    "Gemma4UnifiedProcessor": FilmFamily(),
    "EmbeddingGemma2Processor": FilmFamily(),
    "InternVLProcessor": FilmFamily(features="image_token"),
    "SmolVLMProcessor": FilmFamily(features="image_token"),
    "LlavaOnevisionProcessor": FilmFamily(alike=True),
    "LlavaNextVideoProcessor": FilmFamily(alike=True, copies=True),
    "VideoLlavaProcessor": FilmFamily(alike=True, copies=True),
    "PerceptionLMProcessor": FilmFamily(alike=True, copies=True),
}
#: Reasons for which others are refused.
REFUSED = {
    "Ernie4_5_VLMoeProcessor": "draws times into the frames, by a font of its repository",
}


def refuse_sound_inside(settings: Mapping[str, Any]) -> None:
    """Raise `ConfigError` if arguments of a template ask for the sound inside films."""
    for name in ("load_audio_from_video", "use_audio_in_video"):
        if settings.get(name):
            raise ConfigError(
                f"template_kwargs must not have {name}, got {settings[name]!r}: a template writes "
                "a film with sound as one without.",
                "Set processor.load_audio_from_video = True, for Qwen2.5-Omni or Qwen3-Omni.",
                setting=name,
            )


def film_family_of(processor: Any) -> FilmFamily:
    """Return the family of a processor; raise `ConfigError` if it takes no films here."""
    names = [kind.__name__ for kind in type(processor).__mro__]
    name = next((each for each in names if each in FILM_FAMILIES), None)
    lacks = ""
    if name is None:
        lacks = next((f", which {REFUSED[each]}" for each in names if each in REFUSED), "")
    elif getattr(processor, "video_processor", None) is None:
        lacks = " without a video processor"
    elif FILM_FAMILIES[name].since_5 and not hasattr(processor, "replace_video_token"):
        lacks = " of transformers 4"
    if name is None or lacks:
        raise ConfigError(
            f"processor must be one that takes films, got {type(processor).__name__}{lacks}.",
            f"Use one of {', '.join(FILM_FAMILIES)} as AutoProcessor makes them, which needs "
            "torchvision; all but those of Qwen-VL need transformers 5.",
            setting="processor",
        )
    family = FILM_FAMILIES[name]
    if getattr(processor, "load_audio_from_video", False) and not family.sound:
        raise ConfigError(
            f"The sound inside films is read for Qwen2.5-Omni and Qwen3-Omni, got {name} with "
            "load_audio_from_video=True.",
            "Set processor.load_audio_from_video = False.",
            setting="processor",
        )
    if family.by_values and getattr(processor.video_processor, family.by_values):
        raise ConfigError(
            f"processor must count the tokens of films by their sizes, and with {family.by_values} "
            "it drops tokens by the values of pixels.",
            f"Set processor.video_processor.{family.by_values} = False.",
            setting="processor",
        )
    return family
