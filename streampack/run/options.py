"""What the arguments of `PackedDataset` mean together, and which of them cannot work."""

from __future__ import annotations

import copy
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from streampack.arguments import one_of, whole_number
from streampack.documents.fields import FieldTypes
from streampack.errors import ConfigError
from streampack.job.topology import Topology
from streampack.lane.config import MOST_LANES
from streampack.packing import Packer
from streampack.sources.base import Source
from streampack.stages.base import BlockStage
from streampack.stages.ids import Apart, CheckedIds, Numbered, Unsigned, WithoutEmpty
from streampack.stages.preparation import Preparation
from streampack.tokenization.rules import EosRule, TokenRules, checked_id
from streampack.window.config import WindowConfig
from streampack.window.gather import RowFormat, RowStage

if TYPE_CHECKING:
    from streampack.ordering import DocumentOrder
    from streampack.streams.hooks import Hook
    from streampack.tokenization.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

BATCH_ROWS = 8  # a row by itself takes twice the time per token to assemble


def check_layout(layout: str, attention: str, packer: Packer, source: Source) -> bool:
    """Whether records are trees.

    Raises:
        ConfigError: they cannot be: records have one document each, or trees would be cut, or their
            branches would see one another.
    """
    one_of("layout", layout, ["documents", "tree"])
    if layout == "documents":
        return False
    wrong = None
    if not source.several:
        wrong = "the records have one document each", 'leave out layout="tree"'
    elif attention == "row":
        wrong = 'attention is "row"', "leave out attention="
    elif packer.overflow not in ("drop", "error") or not packer.keeps_whole:
        size = packer.seq_lens[-1]
        wrong = (
            f"{type(packer).__name__} with overflow={packer.overflow!r} cuts documents",
            f'use packer=BestFitDecreasing(seq_len={size}, overflow="drop"), or "error"',
        )
    elif packer.weights:
        wrong = f"the packer goes by {packer.weights[0]} of documents", "leave them out"
    if wrong is not None:
        fact, remedy = wrong
        raise ConfigError(
            f'layout is "tree", and {fact}.', f"{remedy[0].upper()}{remedy[1:]}.", setting="layout"
        )
    return True


def media_of(
    processor: Any,
    source: Source,
    *,
    packer: Packer,
    attention: str,
    layout: str,
    order: Any,
    map: Any,
) -> Any:
    """What the run does with images: `MediaProcessing`; None without a processor.

    Raises:
        ConfigError: documents have images and there is no processor, or the arguments do not go
            together with images.
    """
    if processor is None:
        with_images = [part for part in source.parts.values() if type(part).__name__ == "Images"]
        if with_images:
            raise ConfigError(
                "The source has images, and there is no processor.",
                "Pass processor=, of transformers.",
                setting="processor",
            )
        return None
    whole = packer.overflow in ("drop", "error") and packer.keeps_whole
    size = packer.seq_lens[-1]
    for wrong, setting, fact, remedy in (
        (order is not None, "order", "An order is given", "Leave out order="),
        (map is not None, "map", "A map is given", "Leave out map=; a filter= may stay"),
        (attention == "row", "attention", 'attention is "row"', "Leave out attention="),
        (layout == "tree", "layout", 'layout is "tree"', "Leave out layout="),
        (
            source.grouped or packer.packs_members,
            "source",
            "Records may have several documents",
            "Give each its own record",
        ),
        (
            not whole,
            "packer",
            f"{type(packer).__name__} with overflow={packer.overflow!r} cuts documents",
            f'Use packer=BestFitDecreasing(seq_len={size}, overflow="drop"), or "error"',
        ),
    ):
        if wrong:
            fact = f"{fact}, which does not go with processor=: an image is never cut or moved."
            raise ConfigError(fact, f"{remedy}.", setting=setting)
    from streampack.media.processing import MediaProcessing

    return MediaProcessing(processor)


def tokenizer_of(processor: Any) -> Any:
    """The tokenizer of a processor of transformers, with its chat template; None without one."""
    tokenizer = getattr(processor, "tokenizer", None)
    template = getattr(processor, "chat_template", None)
    if tokenizer is not None and template:
        tokenizer = copy.copy(tokenizer)
        tokenizer.chat_template = _with_margins(template, processor)
    return tokenizer


def _with_margins(template: Any, processor: Any) -> Any:
    """A chat template, several by name, or None, with what the processor writes around images."""
    from streampack.media.families import with_margins

    if isinstance(template, dict):
        return {name: with_margins(text, processor) for name, text in template.items()}
    return None if template is None else with_margins(template, processor)


def rows_by(
    row_format: RowFormat,
    packer: Packer,
    source: Source,
    fields: FieldTypes,
    *,
    tree: bool,
    media: Any = None,
    provenance: bool = False,
    by_row: bool = False,
) -> RowFormat:
    """The format of the rows that a packer makes of a source with these fields.

    Raises:
        ConfigError: the packer inserts an EOS whose id is unknown.
    """
    if packer.inserts_eos and row_format.eos_id < 0:
        raise ConfigError(
            f"{type(packer).__name__} ends pieces of long documents with an EOS, and its id is "
            "unknown.",
            "Pass token_rules=TokenRules(eos_id=...), or a tokenizer that declares it.",
            setting="token_rules",
        )
    grouped = tree or packer.packs_members
    sources = len(source.parts) if source.mixed else 0
    stages: list[RowStage] = []
    if provenance:
        from streampack.window.provenance import Provenance

        stages.append(Provenance())
    if fields and not tree:
        from streampack.window.field_columns import FieldColumns

        stages.append(FieldColumns(replace(fields, document={}) if grouped else fields))
    if media is not None:
        from streampack.media.row_stage import Images

        stages.append(Images(media))
    if tree:
        from streampack.window.tree_rows import TreeRows

        stages.append(TreeRows(fields.with_groups(), sources))
    elif grouped:
        from streampack.window.grouped_rows import GroupsSplit

        stages.append(GroupsSplit(fields.with_groups(), by_row))
    if sources and not tree:
        from streampack.window.source_counts import SourceCounts

        stages.append(SourceCounts(sources, whole=grouped))
    return replace(
        row_format,
        mask_repeated=packer.mask_repeated,
        attention_by_row=by_row,
        stages=tuple(stages),
        units=("the group that begins with " if grouped else "", "slots" if tree else "tokens"),
    )


def say_if_kept_apart(order: DocumentOrder | None, attention: str) -> None:
    """Warn of an order that puts documents side by side which do not see one another."""
    if order is not None and attention == "document":
        logger.warning(
            '%s puts related documents into one row, and with attention="document" none of them '
            'sees another. Pass attention="row" too, or leave out the order.',
            type(order).__name__,
        )


def tokens_per_batch(batch_size: int | None, packer: Packer) -> int:
    """Tokens per batch; raises `ConfigError` unless they are whole rows.

    8 rows by default; of rows of several lengths, as many as one of the longest takes.
    """
    longest = packer.seq_lens[-1]
    if packer.batch_tokens is not None:
        if batch_size is not None:
            raise ConfigError(
                f"batch_size is {batch_size!r}, and the packer has "
                f"batch_tokens={packer.batch_tokens}.",
                "Leave out one of them.",
                setting="batch_size",
            )
        return packer.batch_tokens
    most = ((1 << 31) - 1) // longest
    default = min(BATCH_ROWS, most) if len(packer.seq_lens) == 1 else 1
    rows = default if batch_size is None else batch_size
    return whole_number("batch_size", rows, most=most) * longest


def checked_counts(
    seed: int, epochs: int | None, lanes: int | None
) -> tuple[int, int | None, int | None]:
    """The same as plain integers; raises `ConfigError` where they are none, or mean nothing."""
    seed = whole_number("seed", seed, least=None)
    if epochs is not None:
        epochs = whole_number("epochs", epochs, otherwise="or None (endless)")
    if lanes is not None:
        lanes = whole_number("lanes", lanes, most=MOST_LANES, otherwise="or None (chosen)")
    return seed, epochs, lanes


def check_switches(**switches: Any) -> None:
    """Raise `ConfigError` unless each is True or False: any text would count as True."""
    for name, value in switches.items():
        if not isinstance(value, (bool, np.bool_)):
            raise ConfigError(
                f"{name} is {value!r:.80}.", f"Pass {name}=True or False.", setting=name
            )


#: Of arguments that are objects of ours: their kind, what another means, and what to pass.
_KINDS: dict[str, tuple[type, str]] = {
    "token_rules": (TokenRules, "TokenRules(...)"),
    "topology": (Topology, "Topology(rank, world_size)"),
    "window": (WindowConfig, "WindowConfig(...)"),
}


def check_kinds(**given: Any) -> None:
    """Raise `ConfigError` unless each is None or of the kind that its name asks for."""
    for name, value in given.items():
        if value is None:
            continue
        kind: type
        if name == "order":
            from streampack.ordering.order import DocumentOrder

            kind, example = DocumentOrder, "SimilarityOrder() or what has the same attributes"
        else:
            kind, example = _KINDS[name]
        if value is not None and not isinstance(value, kind):
            remedy = f"Pass {name}={example}, or leave it out."
            raise ConfigError(f"{name} is {value!r:.80}.", remedy, setting=name)


def say_unread(source: Source) -> None:
    """Log once which fields beside token ids nobody reads: one of them may be a mask."""
    for part in source.parts.values():
        fields: Any = getattr(part, "fields", None)
        declared = {*part.field_types.token, *part.field_types.document}
        unread = [n for n in fields.others if n not in declared] if fields is not None else []
        if unread:
            logger.warning(
                "%s: beside the token ids in %r these fields are not read: %s. If one is a loss "
                "mask, pass loss_mask=.",
                part.kind,
                fields.document,
                ", ".join(unread[:30]),
            )


class Tokens(NamedTuple):
    """What tokenizer and rules mean for a run; tokenizers are by source."""

    tokenizers: tuple[Any, ...]
    eos: EosRule
    eos_id: int | None
    vocab_size: int | None


def stages_of(
    source: Source,
    tokens: Tokens,
    *,
    filter: Hook | None,
    map: Hook | None,
    fields: FieldTypes,
    media: Any,
    grouped: bool,
    tree: bool,
) -> Preparation:
    """The stages of a run, for every source of it."""
    every = []
    for tokenizer in tokens.tokenizers:
        own: list[BlockStage] = [Numbered()]
        if tokenizer is None:
            own = [Apart(), Numbered(), CheckedIds(tokens.vocab_size)]
        elif type(tokenizer).__name__ == "ChatTokenizer":
            from streampack.tokenization.chat_stages import Rendered, SidesTold

            own += [] if "chosen" in fields.document else [SidesTold()]
            own.append(Rendered(tokenizer))
        else:
            from streampack.tokenization.stages import Encoded

            if media is not None:
                from streampack.media.stages import Margins

                own.append(Margins(media))
            own.append(Encoded(tokenizer))
        own.append(WithoutEmpty())
        if media is not None:
            from streampack.media.stages import Expanded

            own.append(Expanded(media))
        if tokenizer is None and tokens.eos != "as-is":
            from streampack.tokenization.stages import Ended

            own.append(Ended(tokens.eos, tokens.eos_id))
        if filter is not None or map is not None:
            from streampack.streams.hooks import Filtered, Mapped

            own += [] if filter is None else [Filtered(filter)]
            own += [] if map is None else [Mapped(map, tokens.vocab_size)]
        if fields:
            from streampack.streams.field_stage import Cast

            own.append(Cast(fields))
        own.append(Unsigned(keeps_fields=bool(fields)))
        if grouped:
            from streampack.streams.group_stages import Together

            own.append(Together())
        if tree:
            from streampack.trees.stage import Planted

            own.append(Planted())
        every.append(tuple(own))
    mixed = source.mixed
    eos = [tokens.eos, tokens.eos_id] if mixed or source.tokenized else None
    return Preparation(tuple(every), {"eos": eos})


def prepare(
    source: Source, tokenizer: Any, rules: TokenRules, processor: Any = None
) -> tuple[Tokens, RowFormat]:
    """What tokenizer and rules mean for this kind of source; -1 stands for an unknown EOS id."""
    eos_id, pad_id, vocab_size = rules.eos_id, rules.pad_id, rules.vocab_size
    texts = [name for name, part in source.parts.items() if not part.tokenized]
    ids = any(part.tokenized for part in source.parts.values())
    of_texts: Tokenizer | None = None
    of_chats: Tokenizer | None = None
    if tokenizer is not None:
        from streampack.tokenization.tokenizer import Tokenizer, load_tokenizer

        given = {"eos": rules.eos, "eos_id": eos_id, "pad_id": pad_id}
        if not isinstance(tokenizer, Tokenizer):
            given["model_vocab_size"] = vocab_size
        if not texts:  # the tokenizer only lends its ids
            given["eos"] = None if isinstance(tokenizer, Tokenizer) else "as-is"
        settings: dict[str, Any] = {k: value for k, value in given.items() if value is not None}
        of_texts = of_chats = load_tokenizer(tokenizer, **settings)
        if (special := rules.special_tokens_in_text) is not None:
            of_texts = load_tokenizer(tokenizer, **settings, special_tokens_in_text=special)
            of_chats = load_tokenizer(tokenizer, **settings, special_tokens_in_text="encode")
        tokenizer = of_texts
        eos_id, pad_id = tokenizer.eos_id, tokenizer.pad_id
        vocab_size = tokenizer.vocab_size if vocab_size is None else vocab_size
        checked_id("eos_id", eos_id, vocab_size)
    elif texts:
        named = f'Source "{texts[0]}"' if source.mixed else "The source"
        raise ConfigError(
            f"{named} gives texts, and there is no tokenizer.",
            "Pass tokenizer= (a path to tokenizer.json, or a tokenizers or transformers "
            "tokenizer).",
            setting="tokenizer",
        )
    rule = rules.eos or "as-is"
    if ids and rule != "as-is" and eos_id is None:
        raise ConfigError(
            f'eos is "{rule}", and the id is unknown.',
            "Pass token_rules=TokenRules(eos_id=...), or a tokenizer that declares it.",
            setting="token_rules",
        )
    tokens = Tokens(
        tokenizers=tuple(
            _for_source(of_texts, of_chats, part, processor) for part in source.parts.values()
        ),
        eos=rule,
        eos_id=eos_id,
        vocab_size=vocab_size,
    )
    return tokens, RowFormat(
        pad_id=0 if pad_id is None else pad_id, eos_id=-1 if eos_id is None else eos_id
    )


def _for_source(tokenizer: Any, of_chats: Any, source: Source, processor: Any) -> Any:
    if source.tokenized:
        return None
    if not hasattr(source, "renders"):
        return tokenizer
    tokenizer = of_chats
    if source.renders:
        from streampack.sources.chat.source import Chat
        from streampack.tokenization.chat import ChatTokenizer

        assert isinstance(source, Chat)
        return ChatTokenizer(
            tokenizer,
            source.template if processor is None else _with_margins(source.template, processor),
            source.document_name,
            source.rules,
            source.template_kwargs,
            source.reading.most_text_bytes,
        )
    return tokenizer
