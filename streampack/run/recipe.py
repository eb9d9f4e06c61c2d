"""RunRecipe: assemble a run from the arguments of a dataset and the leaves that they use.

Steps:
  1. The dataset makes a recipe from its arguments; sources and packers name further leaves.
  2. Every requested leaf in `streampack.leaves` adds its stages, each in a phase.
  3. `config` sorts the stages by phase and combines them with the other settings.

So this module fixes the order of stages, independent of the order in which leaves are added.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from streampack.arguments import whole_number
from streampack.documents.fields import FieldSpec
from streampack.errors import ConfigError
from streampack.lane.config import LaneConfig, Wrapper
from streampack.packing.choice import RowChoice
from streampack.packing.fit_decreasing import BestFitDecreasing
from streampack.packing.overflow import Overflow
from streampack.packing.packer import Packer
from streampack.sources.base import Source
from streampack.stages.base import ASKED, BlockStage
from streampack.stages.ids import Apart, CheckedIds, Numbered, Unsigned, WithoutEmpty
from streampack.stages.preparation import Preparation
from streampack.stages.token_rules import EosRule, TokenRules
from streampack.window.config import WindowConfig
from streampack.window.gather import RowFormat, RowStage

if TYPE_CHECKING:
    from streampack.stages.recipe import Recipe

logger = logging.getLogger(__name__)

BATCH_ROWS = 8  # because a single row takes twice the time per token to assemble

#: Phases of block stages. The trunk checks ids and drops empty documents before "expanded", and
#: drops undeclared fields before "units".
PHASES = ("texts", "ids", "expanded", "ended", "chosen", "columns", "units")
#: Phases of row stages.
ROW_PHASES = ("origins", "columns", "attached", "units", "counts")


class RunRecipe:
    """The settings of a run during assembly; `stages.recipe.Recipe` describes the attributes.

    Args:
        source: prepared source.
        given: values that request leaves, by name; None if omitted.
        fields: declared fields of tokens and documents.
        seq_len, packer, batch_size, attention, window: as for `PackedDataset`.
        rules: rules of token ids.
    """

    def __init__(
        self,
        source: Source,
        given: Mapping[str, Any],
        *,
        fields: FieldSpec,
        seq_len: int | None,
        packer: Packer | None,
        batch_size: int | None,
        attention: str,
        window: WindowConfig | None,
        rules: TokenRules,
    ) -> None:
        self.source, self.fields, self.attention = source, fields, attention
        self.given = dict(given)
        for name in source._leaves():
            if self.given.get(name) is None:
                self.given[name] = ASKED
        self.rules = rules
        self.eos: EosRule = rules.eos or "as-is"
        self.eos_id, self.pad_id, self.vocab_size = rules.eos_id, rules.pad_id, rules.vocab_size
        self.overflow: Overflow | None = None
        self.usual: Callable[[Recipe], Packer] = usual_packer
        self.choice = RowChoice()
        self.gathered: FieldSpec | None = None
        self.units = ("", "tokens")
        self.whole = False
        self.with_margins: Callable[[Any], Any] = as_it_is
        self.described: dict[str, Any] = {}
        self.on_take: list[Callable[[Any, Any], None]] = []
        self.wrappers: list[Wrapper] = []
        self.beside: dict[str, Any] = {}
        self.seq_len = seq_len
        self._packer, self._batch_size, self._window = packer, batch_size, window
        self._blocks: list[tuple[str, int | None, BlockStage]] = []
        self._rows: list[tuple[str, RowStage]] = []

    @property
    def packer(self) -> Packer:
        """The packer, by default the usual one. Leaves that choose defaults come before this."""
        if self._packer is None:
            self._packer = self.usual(self)
        return self._packer

    @packer.setter
    def packer(self, packer: Packer) -> None:
        self._packer = packer

    def one_overflow(self) -> Overflow:
        """Return the overflow of long documents; raise `ConfigError` if the sources disagree."""
        return one_overflow(self.source, self.seq_len or 0)

    def add(self, phase: str, stage: BlockStage, number: int | None = None) -> None:
        """Add a block stage to a phase, for source index `number`; None is every source."""
        assert phase in PHASES
        self._blocks.append((phase, number, stage))

    def add_rows(self, phase: str, stage: RowStage) -> None:
        """Add a row stage to a phase."""
        assert phase in ROW_PHASES
        self._rows.append((phase, stage))

    def has_rows(self, phase: str) -> bool:
        """Return whether a phase has a row stage."""
        return any(each == phase for each, _ in self._rows)

    def config(self, **settings: Any) -> LaneConfig:
        """Make the configuration of the lanes.

        Args:
            settings: further fields of `LaneConfig`.

        Raises:
            ConfigError: the packer inserts an EOS without an id, or a batch is not of whole rows.
        """
        parts = self.source._parts.values()
        eos = [self.eos, self.eos_id] if self.source.tokenized else None
        described = {"eos": eos, **self.described}
        batch_tokens = tokens_per_batch(self._batch_size, self.packer)
        return LaneConfig(
            source=self.source,
            preparation=Preparation(
                tuple(self._stages(number, part) for number, part in enumerate(parts)), described
            ),
            packer=self.packer,
            window=(self._window or WindowConfig()).resolve(self.packer, batch_tokens),
            batch_tokens=batch_tokens,
            row_format=self._row_format(),
            choice=self.choice,
            on_take=tuple(self.on_take),
            wrappers=tuple(self.wrappers),
            beside=self.beside,
            **settings,
        )

    def _stages(self, number: int, source: Source) -> tuple[BlockStage, ...]:
        """Return the stages of a source, in order."""
        by_phase: dict[str, list[BlockStage]] = {phase: [] for phase in PHASES}
        if source.tokenized:
            by_phase["ids"] += [Apart(), Numbered(), CheckedIds(self.vocab_size)]
        else:
            by_phase["texts"].append(Numbered())
        for phase, index, stage in self._blocks:
            if index in (None, number):
                by_phase[phase].append(stage)
        by_phase["ids"].append(WithoutEmpty())
        by_phase["columns"].append(Unsigned(keeps_fields=bool(self.fields)))
        return tuple(stage for phase in PHASES for stage in by_phase[phase])

    def _row_format(self) -> RowFormat:
        packer = self.packer
        if packer.inserts_eos and self.eos_id is None:
            raise ConfigError(
                f"{type(packer).__name__} ends pieces of long documents with an EOS, and its id is "
                "unknown.",
                "Pass token_rules=TokenRules(eos_id=...), or a tokenizer that declares it.",
                setting="token_rules",
            )
        rows = sorted(self._rows, key=lambda row: ROW_PHASES.index(row[0]))
        return RowFormat(
            pad_id=0 if self.pad_id is None else self.pad_id,
            eos_id=-1 if self.eos_id is None else self.eos_id,
            attention_by_row=self.attention == "row",
            mask_repeated=getattr(packer, "mask_repeated", False),
            stages=tuple(stage for _, stage in rows),
            units=self.units,
        )


def as_it_is(template: Any) -> Any:
    """Return a chat template unchanged, for conversations without images."""
    return template


def usual_packer(recipe: Recipe) -> Packer:
    """Return the default packer for rows of `seq_len` tokens."""
    overflow = recipe.overflow or recipe.one_overflow()
    return BestFitDecreasing(seq_len=recipe.seq_len or 0, overflow=overflow)


def one_overflow(source: Source, seq_len: int) -> Overflow:
    """Return the overflow of documents longer than a row; raise `ConfigError` if sources differ."""
    if len({part.overflow for part in source._parts.values()}) > 1:
        raise ConfigError(
            "The mixture has conversations, which are truncated, and documents, which are split.",
            f'Pass packer=BestFitDecreasing(seq_len={seq_len}, overflow=...) with "split", '
            '"truncate" or "drop".',
            setting="packer",
        )
    return source.overflow


def tokens_per_batch(batch_size: int | None, packer: Packer) -> int:
    """Return tokens per batch; raise `ConfigError` unless they make whole rows.

    The default is 8 rows; with rows of several lengths, the tokens of one longest row.
    """
    longest = packer.seq_lens[-1]
    tokens: int | None = getattr(packer, "batch_tokens", None)
    if tokens is not None:
        if batch_size is not None:
            raise ConfigError(
                "Only one of batch_size and the packer's batch_tokens may be set, got "
                f"{batch_size!r} "
                f"and {tokens}.",
                "Leave out one of them.",
                setting="batch_size",
            )
        return tokens
    most = ((1 << 31) - 1) // longest
    default = min(BATCH_ROWS, most) if len(packer.seq_lens) == 1 else 1
    rows = default if batch_size is None else batch_size
    return whole_number("batch_size", rows, most=most) * longest
