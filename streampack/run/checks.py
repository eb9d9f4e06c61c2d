"""Checks of a dataset's arguments, before leaves and stages are chosen."""

from __future__ import annotations

import logging
from typing import Any

from streampack.arguments import one_of, switch, whole_number
from streampack.documents.fields import FieldSpec
from streampack.errors import ConfigError
from streampack.job.topology import Topology
from streampack.lane.config import MOST_LANES
from streampack.packing.packer import Packer
from streampack.sources.base import Source
from streampack.stages.token_rules import TokenRules
from streampack.window.config import WindowConfig

logger = logging.getLogger(__name__)


def check_arguments(window: Any, topology: Any, token_rules: Any, **switches: Any) -> None:
    """Raise `ConfigError` for an argument of another type, or a switch that is not a bool."""
    for name, value, kind, example in (
        ("token_rules", token_rules, TokenRules, "TokenRules(...)"),
        ("topology", topology, Topology, "Topology(rank, world_size)"),
        ("window", window, WindowConfig, "WindowConfig(...)"),
    ):
        if value is not None and not isinstance(value, kind):
            remedy = f"Pass {name}={example}, or leave it out."
            raise ConfigError(f"{name} must be {example}, got {value!r:.80}.", remedy, setting=name)
    for name, value in switches.items():
        switch(name, value)


def checked_counts(
    seed: int, epochs: int | None, lanes: int | None
) -> tuple[int, int | None, int | None]:
    """Return the counts as plain integers; raise `ConfigError` for other types and values."""
    seed = whole_number("seed", seed, least=None)
    if epochs is not None:
        epochs = whole_number("epochs", epochs, otherwise="or None (endless)")
    if lanes is not None:
        lanes = whole_number("lanes", lanes, most=MOST_LANES, otherwise="or None (chosen)")
    return seed, epochs, lanes


def check_packer(seq_len: int | None, packer: Any, attention: str) -> None:
    """Raise `ConfigError` unless one of `seq_len` and `packer` is set and attention is known."""
    one_of("attention", attention, ["document", "row"])
    if packer is not None:
        from streampack.limits.rules import require_packer

        if not type(require_packer(packer)).__module__.startswith("streampack."):
            from streampack.wrong_calls.private_names import refuse_private_names

            refuse_private_names(packer)
    if (seq_len is None) == (packer is None):
        raise ConfigError(
            f"Exactly one of seq_len and packer must be set, got {seq_len!r} and {packer!r:.200}.",
            "Pass seq_len=2048, or packer=BestFitDecreasing(seq_len=2048)."
            if packer is None
            else "Leave out seq_len=.",
            setting="seq_len",
        )


def warn_if_cut(source: Source, packer: Packer) -> None:
    """Warn of a packer that cuts documents which the source would keep whole."""
    if source.overflow != "split" and (packer.overflow == "split" or not packer.keeps_whole):
        logger.warning(
            "%s cuts conversations, so later parts are learnt without the turns before them; "
            'BestFitDecreasing(seq_len=%d, overflow="%s") learns no such part.',
            type(packer).__name__,
            packer.seq_lens[-1],
            source.overflow,
        )


def prepared(source: Source, fields: FieldSpec) -> Source:
    """Return a source that reads these fields too, with its shards listed.

    Raises:
        ConfigError: a path is wrong, or the records lack a field.
    """
    if fields:
        source = source._with_fields(fields)
    source.prepare()
    warn_unread(source)
    return source


def warn_unread(source: Source) -> None:
    """Warn about fields beside token ids that are present but not read: one may be a mask."""
    for part in source._parts.values():
        fields: Any = getattr(part, "fields", None)
        declared = {*part.field_types.token, *part.field_types.document}
        unread = [n for n in fields.others if n not in declared] if fields is not None else []
        if unread:
            logger.warning(
                "%s: beside the token ids in %r these fields are not read: %s. If one is a loss "
                "mask, pass loss_mask=.",
                part._kind,
                fields.document,
                ", ".join(unread[:30]),
            )
