"""Which field of a record holds what: text or token ids, and a loss mask."""

from __future__ import annotations

from dataclasses import dataclass

from streampack.errors import ConfigError

__all__ = ["Fields"]


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of a record that are read.

    Attributes:
        tokenized: True if documents are token ids, False if they are text.
        document: the field with the document; None if a record is itself the document.
        loss_mask: the field with the loss mask, for token ids; None if there is none.
    """

    tokenized: bool
    document: str | None = None
    loss_mask: str | None = None

    @classmethod
    def named(
        cls, *, text: str | None, tokens: str | None, loss_mask: str | None, default: str | None
    ) -> Fields:
        """The fields that a source's arguments name.

        Args:
            text, tokens, loss_mask: the arguments.
            default: the field of text if neither `text` nor `tokens` is given.

        Raises:
            ConfigError: they do not go together.
        """
        if text is not None and tokens is not None:
            raise ConfigError(
                f"Both text={text!r} and tokens={tokens!r} are given.",
                "A document is read from one field.",
                "Pass one of them.",
            )
        if loss_mask is not None and tokens is None:
            raise ConfigError(
                f"loss_mask={loss_mask!r} is given without tokens.",
                "A loss mask has one value per token id, and text has no token ids yet.",
                "Pass tokens=, or leave loss_mask= out.",
            )
        if tokens is not None:
            return cls(True, tokens, loss_mask)
        return cls(False, default if text is None else text)
