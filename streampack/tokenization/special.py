"""SpecialTokens: where the special tokens of a tokenizer stand in a text."""

from __future__ import annotations

import re
from collections.abc import Iterable

_SPACE = re.compile(r"\s*")


class SpecialTokens:
    """Looks for special tokens by their texts."""

    def __init__(self, texts: Iterable[str]) -> None:
        known = sorted((text for text in texts if text), key=len, reverse=True)
        alternatives = "|".join(map(re.escape, known)) or "(?!)"
        self._any = re.compile(alternatives)
        self._at_end = re.compile(f"(?:{alternatives})\\Z")
        self._longest = len(known[0]) if known else 0

    def found(self, text: str) -> list[tuple[str, int]]:
        """The special tokens in a text, and where each ends."""
        return [(match.group(), match.end()) for match in self._any.finditer(text)]

    def end(self, text: str, start: int) -> int | None:
        """The end of the special token that begins at `start`; None if none does."""
        found = self._any.match(text, start)
        return found.end() if found else None

    def ends(self, text: str, start: int, stop: int) -> bool:
        """True if a special token ends text[start:stop]."""
        return self._at_end.search(text, max(start, stop - self._longest), stop) is not None

    def closed(self, text: str, start: int, stop: int, *, by_next: bool = True) -> tuple[int, int]:
        """The span up to the end of the special token that closes it, white space left out.

        Where none does and `by_next` is true, the token that follows counts as one.
        """
        content_stop = start + len(text[start:stop].rstrip())
        if self.ends(text, start, content_stop):
            return start, content_stop
        following = self.end(text, stop) if by_next else None
        return start, stop if following is None else following


def after_space(text: str, start: int) -> int:
    """The place after the white space that begins at `start`."""
    space = _SPACE.match(text, start)
    return space.end() if space else start
