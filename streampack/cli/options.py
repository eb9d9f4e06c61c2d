"""Options that several commands take, as types of their arguments."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["Column", "EndToken", "Integers", "TextField", "TokensField"]

TextField = Annotated[
    str | None, typer.Option(metavar="FIELD", help="Field or column that holds text.")
]
TokensField = Annotated[
    str | None, typer.Option(metavar="FIELD", help="Field or column that holds token ids.")
]
Column = Annotated[
    str | None, typer.Option(metavar="NAME", help="Field or column, whatever it holds.")
]
EndToken = Annotated[
    int | None, typer.Option(help="Token that ends a document, in flat files of tokens.")
]
Integers = Annotated[
    str | None, typer.Option(metavar="TYPE", help="Integers of raw files of tokens: uint16, ...")
]
