"""Signals: functions of a text that rate its difficulty, for `ByField`.

The three signals that "Beyond Random Sampling: Efficient Language Model Pretraining via Curriculum
Learning" (EACL 2026, arXiv 2506.11300) found effective. Each needs one core and no model. They are
computed once, when a corpus is written, and stored in a column beside the text:

    >>> texts = ["One two. " * 40, "Colourless green ideas sleep furiously."]
    >>> records = [{"text": text, "score": compression_ratio(text)} for text in texts]
    >>> records[0]["score"] < records[1]["score"]
    True
"""

from __future__ import annotations

import re
import zlib

__all__ = ["compression_ratio", "flesch_reading_ease", "lexical_diversity"]

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_SENTENCE_END = re.compile(r"[.!?…]+(?=\s|$|[\"'”’)])")
_VOWELS = re.compile(r"[aeiouy]+")
_SILENT_END = re.compile(r"(?:[^aeiouyl]e|[^aeiouytd]ed|[^aeiouysxz]es)$")

#: Type-token ratio at which a factor of MTLD is complete.
MTLD_THRESHOLD = 0.72


def compression_ratio(text: str) -> float:
    """Return the bytes of the text compressed by zlib (level 6) over its bytes in UTF-8.

    Larger is more difficult: less of the text repeats. Texts below some hundred bytes hardly
    compress, whatever they contain. An empty text has 1.0.

    Source: the information-theoretic difficulty of arXiv 2506.11300, as a reciprocal.
    """
    data = text.encode("utf-8", errors="surrogatepass")
    return len(zlib.compress(data, 6)) / len(data) if data else 1.0


def lexical_diversity(text: str) -> float:
    """Return MTLD: the mean number of words in a row with a type-token ratio above 0.72.

    Larger is more difficult. Words are runs of letters and digits in lower case. The mean of a
    forward and a backward pass; an incomplete factor at the end counts in part. A text without
    words has 0.0, and a text without a repeated word the number of its words.

    Source: McCarthy and Jarvis, "MTLD, vocd-D, and HD-D: A validation study of sophisticated
    approaches to lexical diversity assessment" (2010).
    """
    words = _WORD.findall(text.lower())
    if not words:
        return 0.0
    return (_mtld(words) + _mtld(words[::-1])) / 2


def _mtld(words: list[str]) -> float:
    factors, types, count, ratio = 0.0, set[str](), 0, 1.0
    for word in words:
        types.add(word)
        count += 1
        ratio = len(types) / count
        if ratio <= MTLD_THRESHOLD:
            factors, types, count, ratio = factors + 1, set(), 0, 1.0
    if count:
        factors += (1 - ratio) / (1 - MTLD_THRESHOLD)
    return len(words) / (factors or 1.0)


def flesch_reading_ease(text: str) -> float:
    """Return the Flesch reading ease of an English text; about 100 for very easy ones.

    Smaller is more difficult, so use ``ByField(descending=True)``. Syllables are counted as groups
    of vowels without a silent ending, which is right for about nine English words in ten. A text
    without words has 0.0.

    Source: Flesch, "A new readability yardstick" (1948).
    """
    words = _WORD.findall(text)
    if not words:
        return 0.0
    sentences = max(len(_SENTENCE_END.findall(text)), 1)
    syllables = sum(_syllables(word) for word in words)
    return 206.835 - 1.015 * len(words) / sentences - 84.6 * syllables / len(words)


def _syllables(word: str) -> int:
    word = word.lower()
    groups = len(_VOWELS.findall(word))
    return max(groups - bool(_SILENT_END.search(word)), 1)
