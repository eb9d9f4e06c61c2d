"""Attempts to read files, with retries after failures that may pass.

An attempt that fails is followed by a random time of sleep below a doubling bound (so that a
thousand ranks do not retry together), or longer if the server asks for it. An error is raised at
once if another attempt cannot help: a file is missing or forbidden, the disk is full.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from streampack.errors import StorageError, StreampackError
from streampack.storage.failures import WORDS, failure_of, retry_after_s, without_secrets
from streampack.storage.file_info import shown

logger = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_WAIT_S = 0.25
LONGEST_WAIT_S = 30.0
LONGEST_RETRY_AFTER_S = 300.0  # longest wait that a server may ask for


def with_retries(action: Callable[[], T], *, doing: str, url: str, retries: int) -> T:
    """Return the result of `action`, with up to `retries` further attempts.

    Args:
        action: makes a whole attempt, from the beginning.
        doing: name of the action for messages: "Reading", "Downloading".
        url: URL that the action works on.
        retries: attempts after the first.

    Raises:
        StorageError: every attempt failed, or one failed permanently. Its cause is the error of the
            last attempt.
    """
    chance = random.Random()  # not the module's generator, which users may seed
    attempt = 0
    while True:
        attempt += 1
        try:
            return action()
        except StreampackError:
            raise
        except Exception as error:
            failure = failure_of(error)
            original = error.__cause__ or error  # the library's error, before fsspec translated it
            reason = next(iter(str(original).replace(url, shown(url)).splitlines()), "")
            words = without_secrets(f"{type(original).__name__}: {reason}")
            if failure == "transient" and attempt <= retries:
                bound = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** (attempt - 1))
                asked = min(LONGEST_RETRY_AFTER_S, retry_after_s(error))
                logger.info("%s %s: attempt %d failed (%s)", doing, shown(url), attempt, words)
                time.sleep(asked + chance.uniform(0, bound))
                continue
            times = "attempt" if attempt == 1 else "attempts"
            fact, remedy = WORDS[failure]
            failed = StorageError(
                f"{doing} {shown(url)} failed after {attempt} {times}: {fact} ({words}).",
                remedy=remedy,
                path=shown(url),
            )
            failed.failure = failure
            raise failed from error
