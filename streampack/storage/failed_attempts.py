"""A failed attempt to read a file is waited out, or its error is raised."""

from __future__ import annotations

import logging
import random
import time

from streampack.errors import StorageError
from streampack.storage.failures import WORDS, failure_of, retry_after_s, without_secrets
from streampack.storage.file_info import shown
from streampack.storage.waiting import pause

logger = logging.getLogger("streampack.storage.retries")

FIRST_WAIT_S = 0.25
LONGEST_WAIT_S = 30.0
LONGEST_RETRY_AFTER_S = 300.0  # longest wait that a server may ask for
#: Seconds for which attempts are repeated without a number: outages of stores last minutes. A wrong
#: address fails in the same way, and is met by look-ups and listings.
RETRY_S, LOOK_UP_S = 300.0, 20.0
_TOLD_S = 10.0  # an outage that lasts longer is a warning


def wait_or_raise(
    error: Exception, attempt: int, began_s: float, *, doing: str, url: str, retries: int | None
) -> None:
    """Wait until the time of the next attempt.

    Args:
        error: error of the attempt.
        attempt: number of attempts so far.
        began_s: time of the first one, of `time.monotonic`.
        doing, url, retries: as for `with_retries`.

    Raises:
        StorageError: there is no further attempt.
    """
    failure = failure_of(error)
    original = error.__cause__ or error  # the library's error, before fsspec translated it
    reason = next(iter(str(original).replace(url, shown(url)).splitlines()), "")
    words = without_secrets(f"{type(original).__name__}: {reason}")
    spent_s = time.monotonic() - began_s
    most_s = RETRY_S if doing in ("Reading", "Uploading") else LOOK_UP_S
    is_early = spent_s < most_s if retries is None else attempt <= retries
    if failure == "transient" and is_early:
        bound = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** min(attempt - 1, 16))
        asked = min(LONGEST_RETRY_AFTER_S, retry_after_s(error))
        level = logging.INFO if spent_s < _TOLD_S else logging.WARNING
        logger.log(level, "%s %s: attempt %d failed (%s)", doing, shown(url), attempt, words)
        # Not the module's generator, which users may seed and forked workers share.
        pause(asked + random.Random().uniform(0, bound))
        return
    times = "attempt" if attempt == 1 else "attempts"
    fact, remedy = WORDS[failure]
    failed = StorageError(
        f"{doing} {shown(url)} failed after {attempt} {times}: {fact} ({words}).",
        remedy=remedy,
        path=shown(url),
    )
    failed.failure = failure
    raise failed from error
