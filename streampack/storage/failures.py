"""What the failure of a remote store means: in words, what to do, and whether to try again.

fsspec's file systems raise errors of their own libraries, some of which say only "Bad Request". An
error is looked through here, down to what it was raised from, for the code of the store, the HTTP
status, or the error of the connection; the first of these that is known says what happened.
"""

from __future__ import annotations

import asyncio
import errno
import re
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from streampack.errors import StorageError


class TooSlowError(OSError):
    """Bytes arrive, but too slowly to wait for the end."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What a failure means.

    Attributes:
        fact: a clause: "there is no such bucket".
        remedy: a sentence.
        lasts: True if another attempt would fail as well.
    """

    fact: str
    remedy: str
    lasts: bool = True


_CREDENTIALS = (
    "which come from the environment or `storage_options` (see docs/storage.md for each store)."
)
_MISSING = Failure("there is no such file", "Check the path, and that nobody removed the file.")
_NO_BUCKET = Failure(
    "there is no such bucket, container or repository",
    "Check its name, and that endpoint and account are those that have it; to those who may not "
    "see it, a store may say the same.",
)
_WRONG_KEY = Failure(
    "the store does not accept the key, its secret or the token",
    f"Check the credentials, {_CREDENTIALS} A token may have expired.",
)
_EXPIRED = Failure(
    "the credentials or the signature in the URL have expired",
    "Get new ones, and go on from the last checkpoint.",
)
_NO_CREDENTIALS = Failure(
    "no credentials were found, or none were sent",
    f"Set the credentials, {_CREDENTIALS} Public data is read without any by "
    '`storage_options={"anon": True}`, on gs:// by `{"token": "anon"}`.',
)
_DENIED = Failure(
    "access is denied",
    f"Check what these credentials may read, {_CREDENTIALS} To those who may not list, a store "
    "calls a missing file denied, too.",
)
_LISTING_DENIED = Failure(
    "listing is denied",
    "Allow these credentials to list (s3:ListBucket, storage.objects.list, List), or name the "
    "files one by one or with braces: shard-{000..127}.parquet.",
)
_REGION = Failure(
    "the bucket is in another region than the request was for",
    'Set AWS_DEFAULT_REGION, or `storage_options={"client_kwargs": {"region_name": ...}}`.',
)
_CLOCK = Failure(
    "the clock of this machine is not that of the store",
    "Set the clock; a signature holds for some minutes only.",
)
_REDIRECTS = Failure(
    "the server redirects in a circle",
    "Open the URL in a browser, and pass the address at which it ends.",
)
_REFUSED = Failure(
    "the connection was refused, as nothing listens at that address",
    "Check that the server runs, and the host and port (`endpoint_url` on S3).",
    lasts=False,
)
_NO_HOST = Failure(
    "the name of the host is not known",
    "Check the host in the URL or the `endpoint_url`, and the network.",
    lasts=False,
)
_CERTIFICATE = Failure(
    "the certificate of the server is not trusted",
    "Check the host, and that the machine has the certificate of who signed it.",
)
_BUSY = Failure(
    "the server has too much to do",
    "Wait and restart from the last checkpoint, raise `retries` of Storage, or read with fewer "
    "lanes at the same time.",
    lasts=False,
)
_SLOW = Failure(
    "bytes arrive too slowly",
    "Check the network and the server, or lower `min_bytes_per_s` or raise `timeout_s` of Storage.",
    lasts=False,
)
_NETWORK = Failure(
    "the server or the network failed",
    "Check the network and the server, then restart from the last checkpoint; or raise `retries` "
    "or `timeout_s` of Storage.",
    lasts=False,
)
_DISK = Failure(
    "the disk is full",
    "Make room, set a smaller `cache_limit_bytes`, or point `cache_dir` elsewhere.",
)
_OTHER = Failure("the request cannot succeed", "Check the path and the `storage_options`.")

#: Codes of S3 and of Azure.
_CODES = {
    "NoSuchBucket": _NO_BUCKET,
    "ContainerNotFound": _NO_BUCKET,
    "ContainerBeingDeleted": _NO_BUCKET,
    "NoSuchKey": _MISSING,
    "BlobNotFound": _MISSING,
    "InvalidAccessKeyId": _WRONG_KEY,
    "SignatureDoesNotMatch": _WRONG_KEY,
    "AuthenticationFailed": _WRONG_KEY,
    "InvalidAuthenticationInfo": _WRONG_KEY,
    "InvalidToken": _WRONG_KEY,
    "ExpiredToken": _EXPIRED,
    "ExpiredTokenException": _EXPIRED,
    "TokenRefreshRequired": _EXPIRED,
    "RequestExpired": _EXPIRED,
    "NoAuthenticationInformation": _NO_CREDENTIALS,
    "PublicAccessNotPermitted": _NO_CREDENTIALS,
    "AccessDenied": _DENIED,
    "AllAccessDisabled": _DENIED,
    "AuthorizationFailure": _DENIED,
    "AuthorizationPermissionMismatch": _DENIED,
    "AuthorizationHeaderMalformed": _REGION,
    "IllegalLocationConstraintException": _REGION,
    "PermanentRedirect": _REGION,
    "RequestTimeTooSkewed": _CLOCK,
    "SlowDown": _BUSY,
    "ServerBusy": _BUSY,
}
#: Names of exceptions, by library, whose types are not imported for this.
_TYPES = {
    "NoCredentialsError": _NO_CREDENTIALS,
    "PartialCredentialsError": _NO_CREDENTIALS,
    "DefaultCredentialsError": _NO_CREDENTIALS,
    "RefreshError": _EXPIRED,
    "TooManyRedirects": _REDIRECTS,
    "RepositoryNotFoundError": _NO_BUCKET,
    "RevisionNotFoundError": _NO_BUCKET,
    "GatedRepoError": _DENIED,
    "EntryNotFoundError": _MISSING,
}
#: Words by which one code of Azure means one thing or another.
_EXACTER = (
    (re.compile(r"\bexpired\b", re.I), _EXPIRED),
    (re.compile(r"signature not valid in the specified time frame", re.I), _EXPIRED),
    (re.compile(r"failed to authenticate", re.I), _WRONG_KEY),
)
#: What stores say only in words.
_WORDS = (
    *_EXACTER,
    (re.compile(r"specified bucket does not exist", re.I), _NO_BUCKET),
    (re.compile(r"no such container", re.I), _NO_BUCKET),
    (re.compile(r"^b/[^/]+/o$"), _NO_BUCKET),  # of gcsfs, for the listing of a bucket
    (re.compile(r"anonymous caller", re.I), _NO_CREDENTIALS),
    (re.compile(r"invalid credentials", re.I), _WRONG_KEY),
    (re.compile(r"^Forbidden: "), _DENIED),  # of gcsfs, which has no type for it
)
_STATUSES = {
    301: _REGION,
    401: _NO_CREDENTIALS,
    403: _DENIED,
    404: _MISSING,
    410: _MISSING,
    429: _BUSY,
    503: _BUSY,
}
_WORTH_RETRYING = {408, 425}
_HOPELESS_ERRNOS = {errno.ENAMETOOLONG, errno.ENOLCK, errno.ENOSYS, errno.EROFS}
_HOPELESS = (
    IsADirectoryError,
    NotADirectoryError,
    NotImplementedError,
    ImportError,
    TypeError,
    ValueError,
    MemoryError,
)


def explain(error: BaseException, doing: str = "") -> Failure:
    """What a failure means; `doing` is "Listing" where the words depend on it."""
    found = _known(error)
    if doing == "Listing" and found is _DENIED:
        return _LISTING_DENIED
    return found


def is_missing(error: BaseException) -> bool:
    """True if the error, or what it was raised from, says that there is no such file.

    Not if there is not even the bucket: what is asked of it would be missing whatever its name.
    """
    return _known(_original(error)) is _MISSING


def is_bucket_missing(error: BaseException) -> bool:
    """True if the error, or what it was raised from, says that there is no such bucket."""
    return _known(_original(error)) is _NO_BUCKET


def is_of_system(error: BaseException) -> bool:
    """True if the operating system failed, as at a broken disk, and not the content of a file."""
    return isinstance(error, OSError) and error.errno is not None


def _original(error: BaseException) -> BaseException:
    return (error.__cause__ or error) if isinstance(error, StorageError) else error


def is_bare_refusal(error: BaseException) -> bool:
    """True for a refusal without a reason: answers to HEAD have no body that could say it."""
    return code_of(error) in ("301", "400", "403", "AuthenticationFailed", "AuthorizationFailure")


def _known(error: BaseException) -> Failure:
    chain = list(_chain(error))
    for link in chain:
        if isinstance(link, TooSlowError):
            return _SLOW
        if (code := code_of(link)) in _CODES:
            failure = _CODES[code]
            exacter = (f for words, f in _EXACTER if words.search(str(link)))
            return next(exacter, failure) if failure in (_DENIED, _WRONG_KEY) else failure
        if (name := type(link).__name__) in _TYPES:
            return _TYPES[name]
    for link in chain:
        for words, failure in _WORDS:
            if words.search(str(link)):
                return failure
    return _by_connection(chain) or _by_status(chain) or _by_type(chain[0], chain)


def _by_connection(chain: list[BaseException]) -> Failure | None:
    for link in chain:
        number = getattr(link, "errno", None)
        if isinstance(link, ConnectionRefusedError) or number == errno.ECONNREFUSED:
            return _REFUSED
        if isinstance(link, ssl.SSLCertVerificationError):
            return _CERTIFICATE
        if isinstance(link, socket.gaierror):
            return _NO_HOST
    return None


def _by_status(chain: list[BaseException]) -> Failure | None:
    status = next((s for s in map(_status, chain) if s), None)
    if status is None:
        return None
    if status in _STATUSES:
        return _STATUSES[status]
    return _OTHER if 400 <= status < 500 and status not in _WORTH_RETRYING else _NETWORK


def _by_type(error: BaseException, chain: list[BaseException]) -> Failure:
    if isinstance(error, FileNotFoundError):
        cause = error.__cause__
        # Any failed look-up over HTTP is called a missing file.
        if isinstance(cause, OSError | asyncio.TimeoutError) or _module(cause) == "aiohttp":
            return _NETWORK
        return _MISSING
    if isinstance(error, PermissionError):
        return _DENIED
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return _DISK
    if isinstance(error, OSError) and error.errno in _HOPELESS_ERRNOS:
        return _OTHER
    return _OTHER if isinstance(error, _HOPELESS) else _NETWORK


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and what it was raised from or wraps, outermost first."""
    seen: list[BaseException] = []
    waiting: list[Any] = [error]
    while waiting and len(seen) < 16:
        link = waiting.pop(0)
        if not isinstance(link, BaseException) or any(link is other for other in seen):
            continue
        seen.append(link)
        yield link
        waiting += [link.__cause__, getattr(link, "os_error", None)]
        waiting += [getattr(link, "inner_exception", None), getattr(link, "reason", None)]
        kwargs = getattr(link, "kwargs", None)  # of botocore
        waiting += [kwargs.get("error")] if isinstance(kwargs, dict) else []
        waiting += link.args if isinstance(link, OSError) else []


def _module(error: BaseException | None) -> str:
    return type(error).__module__.partition(".")[0]


def code_of(error: BaseException) -> str:
    """What S3 or Azure call the failure; "" if nothing says it."""
    for link in _chain(error):
        answer = getattr(link, "response", None)
        if isinstance(answer, dict):
            code = str(answer.get("Error", {}).get("Code", ""))
            of_bucket = getattr(link, "operation_name", "") == "HeadBucket"
            return "NoSuchBucket" if of_bucket and code == "404" else code
        if named := getattr(link, "error_code", None):
            return str(getattr(named, "value", named))
    return ""


def _status(error: BaseException) -> int | None:
    """The HTTP status that an answer had, if the error is about an answer."""
    names = ["status", "status_code"] + (["code"] if _module(error) == "gcsfs" else [])
    places = [error, getattr(error, "response", None)]
    for place in places:
        if isinstance(place, dict):  # of botocore
            found = place.get("ResponseMetadata", {}).get("HTTPStatusCode")
            if isinstance(found, int):
                return found
        for name in names:
            value = getattr(place, name, None)
            if isinstance(value, int):
                return value
    return None


def retry_after_s(error: BaseException, now_s: float | None = None) -> float:
    """Seconds that the server asked to wait with ``Retry-After``, a number or a date; 0 if not.

    Args:
        error: of the attempt.
        now_s: seconds since 1970, by default the clock's.
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
    """A message without the queries and passwords of the URLs in it."""
    text = re.sub(r"(\b[a-z][a-z0-9+.-]*://)[^/\s'\"@?]*@", r"\1", text)
    return re.sub(r"(\b[a-z][a-z0-9+.-]*://[^\s'\"?<>)]*)\?[^\s'\"<>)]*", r"\1", text)
