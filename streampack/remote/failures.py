"""Failures of a store: missing, denied, transient (worth another attempt) or other.

fsspec's file systems raise errors of their libraries. The chain of an error and its causes is
searched for an HTTP status, and otherwise for a built-in exception type.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import random
import re
import ssl
import time
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from streampack.errors import StorageError, StoreFailure
from streampack.file_info import shown
from streampack.threads import pause

logger = logging.getLogger("streampack.remote.retries")

#: Fact and remedy of a failure, for messages.
WORDS: dict[StoreFailure, tuple[str, str]] = {
    "missing": ("there is no such file", "Check the path or URL."),
    "denied": (
        "access is denied",
        "Check the credentials (docs/storage.md), or the rights to a local folder; public "
        'buckets of S3 need {"anon": True}.',
    ),
    "transient": (
        "the server or the network failed",
        "Check both, then go on from the last checkpoint; or raise `retries` or `timeout_s` of "
        "Storage.",
    ),
    "other": (
        "the request cannot succeed",
        "Check the path, the `storage_options` and the room on the disk.",
    ),
}
_STATUSES: dict[int, StoreFailure] = {
    401: "denied", 403: "denied", 404: "missing", 410: "missing",
    408: "transient", 425: "transient", 429: "transient", 501: "other",
}  # fmt: skip
#: By S3's code, which has status 400.
_CODES: dict[str, StoreFailure] = {
    "RequestTimeout": "transient", "ExpiredToken": "denied", "InvalidToken": "denied",
}  # fmt: skip
_LASTING_ERRNOS = {
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.ENAMETOOLONG, errno.ENOLCK,
    errno.ENOSYS,
}  # fmt: skip
_LASTING = (
    IsADirectoryError, NotImplementedError, ImportError, TypeError, ValueError, MemoryError,
)  # fmt: skip
#: Errors of botocore, by name, for credentials that are missing, incomplete or expired.
_NO_CREDENTIALS = re.compile("botocore.*(NoCred|PartialCred|NoAuthToken|SSO|ProfileNotFound)")


FIRST_WAIT_S = 0.25
LONGEST_WAIT_S = 30.0
LONGEST_RETRY_AFTER_S = 300.0  # longest wait that a server may ask for
#: Seconds for which attempts are repeated without a number: outages of stores last minutes. A wrong
#: address fails in the same way, and is met by look-ups and listings.
RETRY_S, LOOK_UP_S = 300.0, 20.0
_TOLD_S = 10.0  # an outage that lasts longer is a warning


class TooSlowError(OSError):
    """Raised if bytes arrive too slowly to wait for the end."""


class RefusedError(OSError):
    """Raised for an answer that is a refusal.

    Attributes:
        status: its HTTP status.
        headers: its headers.
        store_code: the store's name for the reason, as "NoSuchKey".
    """

    def __init__(
        self, status: int, words: str, headers: dict[str, str] | None = None, code: str = ""
    ) -> None:
        super().__init__(f"{status} {words}")
        self.status, self.headers, self.store_code = status, headers or {}, code


def failure_of(error: BaseException) -> StoreFailure:
    """Classify an error of a file system."""
    chain = list(_chain(error))
    if any(map(_garbled, chain)):
        return "transient"
    status = next((s for s in map(_status, chain) if s), None)
    if status is not None:
        codes = (_CODES.get(getattr(link, "store_code", "")) for link in chain)
        by_code: StoreFailure | None = next(filter(None, codes), None)
        return by_code or _STATUSES.get(status, "transient" if status >= 500 else "other")
    if isinstance(error, NotADirectoryError):
        return "missing"
    if any(_NO_CREDENTIALS.search(str(type(link))) for link in chain):
        return "denied"
    cause = error.__cause__
    if isinstance(error, FileNotFoundError):
        # fsspec reports any HTTP failure as a missing file.
        failed = isinstance(cause, OSError | asyncio.TimeoutError) or _module(cause) == "aiohttp"
        return failure_of(cause) if cause is not None and failed else "missing"
    # gcsfs raises these.
    if isinstance(error, PermissionError) or str(error).startswith("Forbidden: "):
        return "denied"
    lasts = isinstance(error, _LASTING) or getattr(error, "errno", None) in _LASTING_ERRNOS
    untrusted = any(isinstance(link, ssl.SSLCertVerificationError) for link in chain)
    return "other" if lasts or untrusted else "transient"


def _garbled(error: BaseException) -> bool:
    """Return True for an answer too slow, or not in its format; aiohttp gives that status 400."""
    in_http = type(error).__module__ == "aiohttp.http_exceptions"
    return in_http or isinstance(error, TooSlowError | json.JSONDecodeError)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and its causes or wrapped errors, outermost first."""
    seen: list[BaseException] = []
    waiting: list[Any] = [error]
    while waiting and len(seen) < 16:
        link = waiting.pop(0)
        if not isinstance(link, BaseException) or any(link is other for other in seen):
            continue
        seen.append(link)
        yield link
        waiting += [link.__cause__, getattr(link, "os_error", None)]
        waiting += link.args if isinstance(link, OSError) else []


def _module(error: BaseException | None) -> str:
    return type(error).__module__.partition(".")[0]


def _status(error: BaseException) -> int | None:
    """Return the HTTP status of an error about an answer; None for other errors."""
    answer = getattr(error, "response", None)
    if isinstance(answer, dict):  # raised by botocore
        status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return status if isinstance(status, int) else None
    names = ["status", "status_code"] + (["code"] if _module(error) == "gcsfs" else [])
    values = [getattr(place, name, None) for place in (error, answer) for name in names]
    return next((value for value in values if isinstance(value, int)), None)


def retry_after_s(error: BaseException, now_s: float | None = None) -> float:
    """Return the seconds to wait by the server's ``Retry-After`` (number or date); 0 without one.

    Args:
        error: error of the attempt.
        now_s: current time in seconds since 1970; None reads the clock.
    """
    text = next((text for text in map(_retry_after, _chain(error)) if text), "")
    if re.fullmatch(r"\s*\d{1,9}\s*", text):
        return float(text)
    try:
        then_s = parsedate_to_datetime(text).timestamp()
    except (TypeError, ValueError, IndexError, OverflowError):
        return 0.0
    return max(0.0, then_s - (time.time() if now_s is None else now_s))


def _retry_after(error: BaseException) -> str:
    answer = getattr(error, "response", None)
    if isinstance(answer, dict):
        headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    else:
        headers = getattr(error, "headers", None) or getattr(answer, "headers", None)
    if not isinstance(headers, Mapping):
        return ""
    return next((str(headers[name]) for name in headers if name.lower() == "retry-after"), "")


def without_secrets(text: str) -> str:
    """Remove queries and passwords from the URLs in a message."""
    text = re.sub(r"(\b[a-z][a-z0-9+.-]*://)[^/\s'\"?]*@", r"\1", text)
    return re.sub(r"(\b[a-z][a-z0-9+.-]*://[^\s'\"?<>)]*)\?[^\s'\"<>)]*", r"\1", text)


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
