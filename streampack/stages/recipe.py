"""Recipe: the parts of a run's assembly that a leaf may read and add to; see `run.recipe`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from streampack.documents.fields import FieldSpec
from streampack.stages.base import BlockStage
from streampack.stages.token_rules import EosRule, TokenRules

if TYPE_CHECKING:
    from streampack.packing.choice import RowChoice
    from streampack.packing.overflow import Overflow
    from streampack.packing.packer import Packer
    from streampack.sources.base import Source
    from streampack.window.gather import RowStage


class Recipe(Protocol):
    """The settings of a run during assembly, as its leaves see them.

    Attributes:
        source: prepared source.
        given: values that request leaves, by name: arguments of the dataset, None if omitted, or
            `ASKED` if the source requests a leaf and no argument does. A leaf may set the value of
            a later one.
        fields: declared fields of tokens and documents.
        seq_len, attention: as for `PackedDataset`.
        packer: the packer, by default the usual one. Leaves that choose defaults come before it.
        rules: rules of token ids, as given.
        eos, eos_id, pad_id, vocab_size: rules of ids in force, completed by the tokenizer.
        overflow: overflow of the default packer; None uses the source's.
        usual: makes the default packer.
        choice: choice of the rows that go in a round.
        gathered: fields that rows get for their pieces; None is all.
        units: names in messages of a document of the window, and of its tokens.
        whole: True if every piece of a batch is a whole document.
        with_margins: converts chat templates.
        described: further fields of the fingerprint.
        on_take, wrappers: see `LaneConfig`.
        beside: values of leaves in the run's first state, by key.
    """

    source: Source
    given: dict[str, Any]
    fields: FieldSpec
    seq_len: int | None
    attention: str
    rules: TokenRules
    eos: EosRule
    eos_id: int | None
    pad_id: int | None
    vocab_size: int | None
    overflow: Overflow | None
    usual: Callable[[Recipe], Packer]
    choice: RowChoice
    gathered: FieldSpec | None
    units: tuple[str, str]
    whole: bool
    with_margins: Callable[[Any], Any]
    described: dict[str, Any]
    on_take: list[Callable[[Any, Any], None]]
    wrappers: list[Callable[[Any, Any], Any]]
    beside: dict[str, Any]

    @property
    def packer(self) -> Packer:
        """The packer; see above."""

    @packer.setter
    def packer(self, packer: Packer) -> None: ...

    def one_overflow(self) -> Overflow:
        """Return the overflow of long documents; raise `ConfigError` if the sources disagree."""

    def add(self, phase: str, stage: BlockStage, number: int | None = None) -> None:
        """Add a block stage to a phase, for source index `number`; None is every source."""

    def add_rows(self, phase: str, stage: RowStage) -> None:
        """Add a row stage to a phase."""

    def has_rows(self, phase: str) -> bool:
        """Return whether a phase has a row stage."""
