"""Find out whether the bucket, repository or revision of a URL without files exists."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from streampack.errors import StorageError
from streampack.storage.file_info import shown, split_url
from streampack.storage.retries import with_retries

if TYPE_CHECKING:
    from streampack.storage.catalogs import Catalog

BUCKETS = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss")


def missing_container(
    catalog: Catalog, filesystem: Callable[[], Any], url: str, *, retries: int | None
) -> str:
    """Return a sentence if the container of a URL does not exist, or "".

    Args:
        catalog: names in the stores of the URL's protocol.
        filesystem: opens the file system of the protocol.
        url: URL in which no file was found.
        retries: attempts after the first.
    """
    protocol, path = split_url(url)
    ask, sentence = None, ""
    if protocol == "hf":
        ask = partial(filesystem().resolve_path, url)
    elif protocol in BUCKETS:
        bucket = f"{protocol}://{path.split('://')[-1].split('/')[0]}"
        ask, sentence = partial(catalog.is_folder, bucket), f"There is no bucket {shown(bucket)}."
    if ask is None:
        return ""
    try:
        with_retries(ask, doing="Looking up", url=url, retries=retries)
    except StorageError as error:
        if error.failure == "missing":
            return sentence or f"{shown(url)} leads nowhere: {error.__cause__}."
    return ""
