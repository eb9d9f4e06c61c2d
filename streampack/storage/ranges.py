"""Fetch byte ranges of remote files, each checked for its length and the file's version."""

from __future__ import annotations

from typing import Any, NamedTuple

from streampack.storage.remote import VERSION_FIELDS, Pace, info_of, replaced, split_url, version_of

_HTTP = ("http", "https")
_S3 = ("s3", "s3a")
#: Protocols with ranges. Answers of the first two kinds contain the version; for the others it is
#: looked up after each range. hf:// is left out, because the Hub limits the rate of requests.
_RANGED = (*_HTTP, *_S3, "gs", "gcs", "az", "abfs", "abfss")


class Part(NamedTuple):
    """Bytes of a file, and its version at that time, from `version_of`."""

    data: bytes
    version: str


def has_ranges(protocol: str) -> bool:
    """Return True if files of a protocol are read by range."""
    return protocol in _RANGED


def fetch_range(
    filesystem: Any, url: str, start: int, stop: int, size: int, pace: Pace
) -> Part | None:
    """Fetch bytes [start, stop) of a file of `size` bytes; None if the server has no ranges.

    Raises:
        OSError: other bytes came, or fewer; the file system may raise other errors too.
    """
    protocol = split_url(url)[0]
    method: Any = "cat_file"
    if protocol in _HTTP:
        method = _http_range
    elif protocol in _S3 and hasattr(filesystem, "_call_s3"):
        method = _s3_range
    if method != "cat_file":
        found: Part | None = pace.call(
            filesystem, method, filesystem, url, start, stop, size, num_bytes=stop - start
        )
        return found
    data = pace.call(filesystem, method, url, start=start, end=stop, num_bytes=stop - start)
    if len(data) != stop - start:
        raise OSError(f"{len(data)} bytes came instead of {stop - start}")
    return Part(data, version_of(info_of(filesystem, url, pace)))


async def _http_range(filesystem: Any, url: str, start: int, stop: int, size: int) -> Part | None:
    options = dict(filesystem.kwargs)
    headers = {**(options.pop("headers", None) or {}), "Range": f"bytes={start}-{stop - 1}"}
    session = await filesystem.set_session()
    async with session.get(filesystem.encode_url(url), headers=headers, **options) as answer:
        answer.raise_for_status()
        if answer.status == 200:
            return None
        _check_range(answer.headers.get("Content-Range", ""), url, start, stop, size)
        if answer.status != 206:
            raise OSError(f"status {answer.status} came for a range")
        data = bytearray()
        async for chunk in answer.content.iter_any():
            data += chunk
            if len(data) > stop - start:
                break
        return _part(
            data, stop - start, {name: answer.headers.get(name) for name in VERSION_FIELDS}
        )


async def _s3_range(filesystem: Any, url: str, start: int, stop: int, size: int) -> Part:
    bucket, key, version = filesystem.split_path(url)
    named = {"VersionId": version} if version else {}
    answer = await filesystem._call_s3(
        "get_object",
        Bucket=bucket,
        Key=key,
        Range=f"bytes={start}-{stop - 1}",
        **named,
        **filesystem.req_kw,
    )
    try:
        _check_range(str(answer.get("ContentRange", "")), url, start, stop, size)
        return _part(await answer["Body"].read(), stop - start, dict(answer))
    finally:
        answer["Body"].close()


def _check_range(said: str, url: str, start: int, stop: int, size: int) -> None:
    sent, _, total = said.lower().partition("/")
    if total.isdecimal() and int(total) != size:
        raise replaced(url, f"{size} bytes", f"{total} bytes")
    if sent != f"bytes {start}-{stop - 1}":
        raise OSError(f"bytes {start}-{stop - 1} were asked for and {said or 'others'} came")


def _part(data: bytes | bytearray, expected: int, headers: dict[str, Any]) -> Part:
    if len(data) != expected:
        more = "more than " if len(data) > expected else ""
        raise OSError(f"{more}{len(data)} bytes came instead of {expected}")
    return Part(bytes(data), version_of(headers))
