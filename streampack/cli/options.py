"""Options that several commands take, as types of their arguments."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["TextField", "TokensField"]

TextField = Annotated[
    str | None, typer.Option(metavar="FIELD", help="Field or column that holds text.")
]
TokensField = Annotated[
    str | None, typer.Option(metavar="FIELD", help="Field or column that holds token ids.")
]
