"""Mixin: a class that stands before a trainer's among the bases of a user's class."""

from __future__ import annotations

from typing import Any


class Mixin:
    """Base of the mix-ins. A class that names one after the trainer's own class is refused."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        *before, last = cls.__bases__
        if before and issubclass(last, Mixin):
            names = ", ".join(base.__name__ for base in before)
            raise TypeError(
                f"{last.__name__} is the last base of {cls.__name__}, so that nothing of the "
                f"trainer would be changed. Write class {cls.__name__}({last.__name__}, {names})."
            )
