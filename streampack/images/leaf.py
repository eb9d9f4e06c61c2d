"""The leaf of ``processor=``: stages for images, and arguments that conflict with them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from streampack.errors import ConfigError
from streampack.images.attachments import PATCHES
from streampack.images.families import with_margins
from streampack.images.processing import MediaProcessing
from streampack.images.row_stage import AttachedImages
from streampack.images.stages import Expanded, Margins
from streampack.stages.base import ASKED

if TYPE_CHECKING:
    from streampack.stages.recipe import Recipe


def add(recipe: Recipe, processor: Any) -> None:
    """Add the stages for images, and use the processor's tokenizer unless another one is given.

    Raises:
        ConfigError: documents have images and `processor` is missing, or another argument conflicts
            with images.
    """
    if processor is ASKED:  # the source has images, but the argument is missing
        raise ConfigError(
            "A source with images needs processor=, got None.",
            "Pass processor=, a processor of transformers or an ImageModel.",
            setting="processor",
        )
    if recipe.given["order"] is None:
        recipe.overflow = "drop"
    for wrong, setting, fact, remedy in _conflicts(recipe):
        if wrong:
            fact = f"{fact}, which conflicts with processor=: an image is never cut or moved."
            raise ConfigError(fact, f"{remedy}.", setting=setting)
    planners: dict[str, Any] = {}
    for part in recipe.source._parts.values():
        planners |= part.media_planners(processor) if hasattr(part, "media_planners") else {}
    with_images = [
        name
        for name, part in recipe.source._parts.items()
        if getattr(getattr(part, "reader", None), "images", ())
    ]
    if "audio" in planners and with_images:
        raise ConfigError(
            f"Sounds are mixed with images or films, of source {with_images[0]!r}: a batch without "
            "one of them would not run its tower, and ranks would wait for one another.",
            "Train on them in separate runs, or pass a MediaModel that takes both.",
            setting="source",
        )
    media = MediaProcessing(processor, planners)
    recipe.fields = recipe.given["fields"] = recipe.fields.plus(PATCHES, np.int64)
    recipe.with_margins = partial(_with_margins, processor=processor)
    tokenizer = recipe.given["tokenizer"]
    if tokenizer is None or tokenizer is ASKED:
        recipe.given["tokenizer"] = tokenizer_of(processor) or tokenizer
    for number, part in enumerate(recipe.source._parts.values()):
        if not part.tokenized and not getattr(part, "renders", False):
            recipe.add("texts", Margins(media), number)
    recipe.add("expanded", Expanded(media))
    recipe.add_rows("attached", AttachedImages(media))


def tokenizer_of(processor: Any) -> Any:
    """Return a processor's tokenizer with the processor's chat template, or None without one."""
    tokenizer = getattr(processor, "tokenizer", None)
    template = getattr(processor, "chat_template", None)
    if tokenizer is not None and template:
        tokenizer = copy.copy(tokenizer)
        tokenizer.chat_template = _with_margins(template, processor)
    return tokenizer


def _with_margins(template: Any, processor: Any) -> Any:
    """Add the processor's margins to a chat template, to several by name, or to None."""
    if isinstance(template, dict):
        return {name: with_margins(text, processor) for name, text in template.items()}
    return None if template is None else with_margins(template, processor)


def _conflicts(recipe: Recipe) -> Iterator[tuple[bool, str, str, str]]:
    """Yield arguments that conflict with images: (is in conflict, setting, fact, remedy)."""
    arguments, packer = recipe.given, recipe.packer
    yield arguments["order"] is not None, "order", "An order is given", "Leave out order="
    remedy = "Leave out map=; a filter= may stay"
    yield arguments["map"] is not None, "map", "A map is given", remedy
    row = recipe.attention == "row"
    yield row, "attention", 'attention is "row"', "Leave out attention="
    yield arguments["layout"] is not None, "layout", 'layout is "tree"', "Leave out layout="
    several = recipe.source.grouped or packer._packs_members
    yield several, "source", "Records may have several documents", "Give each its own record"
    yield (
        packer.overflow not in ("drop", "error") or not packer.keeps_whole,
        "packer",
        f"{type(packer).__name__} with overflow={packer.overflow!r} cuts documents",
        f'Use packer=BestFitDecreasing(seq_len={packer.seq_lens[-1]}, overflow="drop"), or "error"',
    )
