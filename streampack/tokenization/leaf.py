"""The leaf of ``tokenizer=``: stages that encode texts and conversations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streampack.errors import ConfigError
from streampack.sources.base import Source
from streampack.stages.base import ASKED, BlockStage
from streampack.stages.token_rules import checked_id
from streampack.tokenization.stages import Encoded
from streampack.tokenization.tokenizer import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    from streampack.stages.recipe import Recipe


def add(recipe: Recipe, tokenizer: Any) -> None:
    """Add the encoding stages; if all documents are ids, take only the tokenizer's special ids.

    Raises:
        ConfigError: a source has texts and `tokenizer` is missing, or the tokenizer is unusable.
    """
    if tokenizer is ASKED:  # the source has texts, but the argument is missing
        name = next(name for name, part in recipe.source._parts.items() if not part.tokenized)
        subject = f'Source "{name}"' if name else "The source"
        raise ConfigError(
            f"{subject} gives texts, and there is no tokenizer.",
            "Pass tokenizer= (a path to tokenizer.json, or a tokenizers or transformers "
            "tokenizer).",
            setting="tokenizer",
        )
    rules, parts = recipe.rules, [*recipe.source._parts.values()]
    ids = {"eos": rules.eos, "eos_id": rules.eos_id, "pad_id": rules.pad_id}
    if not isinstance(tokenizer, Tokenizer):
        ids["model_vocab_size"] = rules.vocab_size
    if all(part.tokenized for part in parts):
        ids["eos"] = None if isinstance(tokenizer, Tokenizer) else "as-is"
    settings: dict[str, Any] = {name: value for name, value in ids.items() if value is not None}
    of_texts = of_chats = load_tokenizer(tokenizer, **settings)
    if (special := rules.special_tokens_in_text) is not None:
        of_texts = load_tokenizer(tokenizer, **settings, special_tokens_in_text=special)
        of_chats = load_tokenizer(tokenizer, **settings, special_tokens_in_text="encode")
    recipe.eos_id, recipe.pad_id = of_texts.eos_id, of_texts.pad_id
    if recipe.vocab_size is None:
        recipe.vocab_size = of_texts.vocab_size
    checked_id("eos_id", recipe.eos_id, recipe.vocab_size)
    for number, part in enumerate(parts):
        for stage in _stages(recipe, part, of_texts, of_chats):
            recipe.add("ids", stage, number)


def _stages(
    recipe: Recipe, source: Source, of_texts: Tokenizer, of_chats: Tokenizer
) -> list[BlockStage]:
    if source.tokenized:
        from streampack.tokenization.converted import check_vocabulary

        check_vocabulary(source, of_texts)
        return []
    if getattr(source, "renders", False):
        from streampack.chats.stages import stages_of

        return stages_of(recipe, source, of_chats)
    return [Encoded(of_chats if hasattr(source, "renders") else of_texts)]
