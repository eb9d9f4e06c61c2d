"""Open fsspec file systems, with options, time limits and ownership by process."""

from __future__ import annotations

import functools
import weakref
from contextlib import suppress
from typing import Any

from streampack.errors import ConfigError, MissingPackageError, StreampackError
from streampack.extras import pip_command
from streampack.per_process import PerProcess
from streampack.remote.clients import own_endpoint
from streampack.remote.failures import without_secrets

#: The extra or the package with a protocol's file system, which fsspec imports at its first use.
_EXTRAS = {"s3": "s3", "s3a": "s3", "http": "http", "https": "http"}
_PACKAGES = {
    "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "abfss": "adlfs",
    "hf": "huggingface_hub",
}  # fmt: skip


def open_filesystem(protocol: str, options: dict[str, Any], timeout_s: float) -> Any:
    """Open a new fsspec file system that gives up a silent connection after `timeout_s` seconds.

    It belongs to the process that opens it: async file systems own a thread and an event loop and
    survive neither a fork nor a pickle.
    """
    import fsspec

    try:
        kind = fsspec.get_filesystem_class(protocol)
    except ImportError as error:
        raise not_installed(protocol, error) from error
    except ValueError as error:
        raise ConfigError(
            f"{protocol}:// cannot be opened: {error}.",
            "Use a local path or a URL that fsspec knows, such as s3://, https:// or gs://.",
            setting="paths",
        ) from error
    # fsspec shares instances between callers and keeps listings; both would hide changes.
    merged = {"skip_instance_cache": True, "use_listings_cache": False, **options}
    try:
        if protocol in ("s3", "s3a"):
            _s3_options(merged, timeout_s)
        elif protocol in ("http", "https"):
            _http_options(merged, timeout_s)
        filesystem = kind(**merged)
    except ImportError as error:
        raise not_installed(protocol, error) from error
    except StreampackError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{protocol}:// cannot be opened ({type(error).__name__}: "
            f"{without_secrets(str(error))}).",
            remedy="Check the credentials and the `storage_options` (docs/storage.md).",
            setting="storage_options",
        ) from error
    _try_once(protocol, filesystem)
    _opened()[id(filesystem)] = filesystem
    return filesystem


def not_installed(protocol: str, error: ImportError) -> ConfigError:
    """Return the error for a package that a protocol needs."""
    if protocol in _EXTRAS:
        command = pip_command(_EXTRAS[protocol])
    else:
        command = f"pip install {_PACKAGES.get(protocol, f'fsspec[{protocol}]')}"
    return MissingPackageError(
        f"{protocol}:// needs a package that is not installed: {error}.",
        f"Run `{command}`.",
        setting="paths",
    )


def _try_once(protocol: str, filesystem: Any) -> None:
    """Switch off the file system's retries, because `with_retries` makes them."""
    if protocol in ("s3", "s3a"):
        filesystem.retries = 1
    elif protocol in ("gs", "gcs"):
        once = getattr(type(filesystem)._request, "__wrapped__", None)
        if once is not None:
            filesystem._request = functools.partial(once, filesystem)
    elif protocol in ("az", "abfs", "abfss"):
        with suppress(AttributeError):
            filesystem.service_client._config.retry_policy.total_retries = 0


# A forked child never releases its parent's: their finalizers would close connections on an
# event loop whose thread does not exist there; the parent has both and closes them itself.
_opened: PerProcess[weakref.WeakValueDictionary[int, Any]]
_opened = PerProcess(weakref.WeakValueDictionary, leave=lambda opened: [*opened.values()])


def _s3_options(options: dict[str, Any], timeout_s: float) -> None:
    client = options.get("client_kwargs") or {}
    if not options.get("endpoint_url") and not client.get("endpoint_url") and own_endpoint():
        options["endpoint_url"] = own_endpoint()
    options["config_kwargs"] = {
        "connect_timeout": timeout_s,
        "read_timeout": timeout_s,
        "retries": {"max_attempts": 1},
        "max_pool_connections": 32,  # above the number of fetching threads
        **(options.get("config_kwargs") or {}),
    }


def _http_options(options: dict[str, Any], timeout_s: float) -> None:
    import aiohttp

    # The default of aiohttp bounds the whole download to five minutes, whatever its size.
    limits = aiohttp.ClientTimeout(total=None, sock_connect=timeout_s, sock_read=timeout_s)
    options["client_kwargs"] = {"timeout": limits, **(options.get("client_kwargs") or {})}
    headers = {"Accept-Encoding": "identity", **(options.get("headers") or {})}
    options["headers"] = headers  # sizes are checked, so nothing may be compressed in transfer
