"""Requests for objects of each kind of store, signed by the libraries of their makers.

A client knows some options of fsspec's file systems. `client_of` returns None for others, and for
protocols without a client, which are read by fsspec.
"""

from __future__ import annotations

import os
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar
from urllib.parse import quote, urlsplit, urlunsplit

from streampack.file_info import split_url
from streampack.remote.connections import basic
from streampack.remote.failures import RefusedError
from streampack.remote.pace import Pace
from streampack.remote.wire import Answer, Request, Wire

_BUFFERS = {  # of fsspec's files, which are not used
    "block_size", "cache_options", "cache_type", "default_block_size", "default_cache_type",
    "default_fill_cache", "skip_instance_cache", "use_listings_cache",
}  # fmt: skip


class Client(ABC):
    """Requests to one kind of store.

    Attributes:
        wire: its connections.
        marks: headers with marks of a version, by the names that the store's listings give them.
    """

    marks: ClassVar[Mapping[str, str]] = {}

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    @abstractmethod
    def request(self, url: str, headers: dict[str, str], version: str) -> Request:
        """Return a signed request for a file, to be refused for another version."""

    def version(self, answer: Answer) -> dict[str, Any]:
        """Return the fields of a version, named as in the store's listings."""
        return {name: answer.headers.get(header) for name, header in self.marks.items()}

    def is_to_be_repeated(self, url: str, error: RefusedError) -> bool:
        """Return True if another request may succeed, as in another region."""
        return False

    def size(self, answer: Answer) -> int | None:
        """Return the size of a whole file by an answer about it; None if it is unknown."""
        name = "Content-Range" if answer.status == 206 else "Content-Length"
        size: str = (answer.headers.get(name) or "").rpartition("/")[2]
        return int(size) if size.isdecimal() else None


def asked(
    client: Client, url: str, headers: dict[str, str], version: str = ""
) -> AbstractContextManager[Answer]:
    """Ask for a file; enter a context with an answer of status 200 or 206."""
    return answered(client, url, lambda: client.request(url, headers, version))


@contextmanager
def answered(client: Client, url: str, request: Callable[[], Request]) -> Iterator[Answer]:
    """Make a request about a URL; enter a context with an answer of status 200 or 206.

    Raises:
        RefusedError: the answer has another status.
    """
    is_repeated = False
    while True:
        with client.wire.asked(request()) as answer:
            if answer.status in (200, 206):
                yield answer
                return
            error = answer.refusal()
        if is_repeated or not client.is_to_be_repeated(url, error):
            raise error
        is_repeated = True


class WebClient(Client):
    """Files of web servers."""

    marks: ClassVar = {"ETag": "ETag", "Last-Modified": "Last-Modified"}

    def __init__(self, wire: Wire, headers: dict[str, str]) -> None:
        super().__init__(wire)
        self._headers = headers

    def request(
        self, url: str, headers: dict[str, str], version: str, method: str = "GET"
    ) -> Request:
        parts = urlsplit(url)
        user, _, netloc = parts.netloc.rpartition("@")
        if user:
            name, _, password = user.partition(":")
            headers = {"Authorization": basic(name, password), **headers}
        plain = urlunsplit(parts._replace(netloc=netloc, fragment=""))
        return Request(plain, {**self._headers, **headers}, method)

    def size(self, answer: Answer) -> int | None:
        # A file that is compressed in transfer has another size.
        is_plain = answer.headers.get("Content-Encoding", "identity") == "identity"
        return super().size(answer) if is_plain else None


def _web(options: dict[str, Any], pace: Pace) -> Client | None:
    known = {"headers", "cookies", "ssl", "proxy", "auth", "client_kwargs", "encoded", *_BUFFERS}
    more = options.get("client_kwargs") or {}
    if not _are_known(options, known) or not _are_known(more, {"headers", "auth", "trust_env"}):
        return None
    headers = {**(more.get("headers") or {}), **(options.get("headers") or {})}
    cookies = options.get("cookies") or {}
    auth = options.get("auth") or more.get("auth")
    verify = _first(options.get("ssl"), True)
    if not (isinstance(cookies, dict) and isinstance(verify, bool | ssl.SSLContext)):
        return None
    if auth is not None:
        if not hasattr(auth, "encode"):  # the BasicAuth of aiohttp
            return None
        headers["Authorization"] = auth.encode()
    if cookies:
        headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in cookies.items())
    proxy = options.get("proxy") or (None if more.get("trust_env") else "")
    named = {str(name): str(value) for name, value in headers.items()}
    return WebClient(Wire(pace, verify, None if proxy is None else str(proxy)), named)


class S3Client(Client):
    """Objects of S3, and of stores with its protocol."""

    marks: ClassVar = {"ETag": "ETag"}

    def __init__(self, options: dict[str, Any], pace: Pace) -> None:
        import botocore.session
        from botocore.configprovider import ConfiguredEndpointProvider
        from botocore.credentials import Credentials
        from botocore.regions import EndpointResolver

        more, config = options.get("client_kwargs") or {}, options.get("config_kwargs") or {}
        session = botocore.session.Session(profile=options.get("profile"))
        scoped = session.get_scoped_config()
        provider = ConfiguredEndpointProvider(
            full_config=session.full_config, scoped_config=scoped, client_name="s3"
        )
        self._endpoint: str = (
            options.get("endpoint_url") or more.get("endpoint_url") or own_endpoint()
        ) or provider.provide()
        self._region: str = (
            more.get("region_name") or session.get_config_variable("region") or "us-east-1"
        )
        self._regions: dict[str, str] = {}  # by bucket, as the store names them
        self._resolver = EndpointResolver(
            session.get_component("data_loader").load_data("endpoints")
        )
        variants = ("use_dualstack_endpoint", "use_fips_endpoint")
        self._variant = {name: True for name in variants if session.get_config_variable(name)}
        style = {**(scoped.get("s3") or {}), **(config.get("s3") or {})}.get("addressing_style")
        self._in_path = style == "path" or (bool(self._endpoint) and style != "virtual")
        self._scheme = (
            "https" if _first(options.get("use_ssl"), more.get("use_ssl"), True) else "http"
        )
        self._payer = {"x-amz-request-payer": "requester"} if options.get("requester_pays") else {}
        self._is_public = bool(options.get("anon"))
        names = [("key", "aws_access_key_id"), ("secret", "aws_secret_access_key"),
                 ("token", "aws_session_token")]  # fmt: skip
        key, secret, token = (options.get(ours) or more.get(theirs) for ours, theirs in names)
        self._credentials: Any = Credentials(key, secret, token) if key and secret else None
        self._session = session
        verify = _first(more.get("verify"), session.get_config_variable("ca_bundle"), True)
        scheme = urlsplit(self._endpoint).scheme if self._endpoint else self._scheme
        super().__init__(Wire(pace, verify, (config.get("proxies") or {}).get(scheme)))

    def request(
        self, url: str, headers: dict[str, str], version: str, method: str = "GET"
    ) -> Request:
        bucket, _, key = split_url(url)[1].partition("/")
        named = {**headers, **_if_match(version)}
        return self.signed(bucket, quote(key, safe="-._~/"), named, method)

    def signed(
        self, bucket: str, target: str, headers: dict[str, str] | None = None, method: str = "GET"
    ) -> Request:
        """Return a signed request for the quoted path, with a query, below a bucket."""
        from botocore.auth import S3SigV4Auth
        from botocore.awsrequest import AWSRequest

        region = self._regions.get(bucket, self._region)
        url = f"{self._root(bucket, region)}/{target}"
        headers = {**self._payer, **(headers or {})}
        if self._is_public:
            return Request(url, headers, method)
        request = AWSRequest(method, url, headers=headers)
        S3SigV4Auth(self._frozen(), "s3", region).add_auth(request)
        return Request(url, dict(request.headers.items()), method)

    def _frozen(self) -> Any:
        if self._credentials is None:
            from botocore.exceptions import NoCredentialsError

            self._credentials = self._session.get_credentials()
            if self._credentials is None:
                raise NoCredentialsError
        return self._credentials.get_frozen_credentials()

    def _root(self, bucket: str, region: str) -> str:
        from botocore.utils import check_dns_name

        endpoint = self._endpoint
        if not endpoint:
            entry = self._resolver.construct_endpoint("s3", region, **self._variant)
            endpoint = f"{self._scheme}://{entry['hostname']}"
        endpoint = endpoint.rstrip("/")
        if self._in_path or not check_dns_name(bucket):  # also with a dot
            return f"{endpoint}/{bucket}"
        parts = urlsplit(endpoint)
        return urlunsplit(parts._replace(netloc=f"{bucket}.{parts.netloc}"))

    def is_to_be_repeated(self, url: str, error: RefusedError) -> bool:
        bucket = split_url(url)[1].partition("/")[0]
        named = {name.lower(): value for name, value in error.headers.items()}
        region = named.get("x-amz-bucket-region")
        if error.status in (301, 302, 307, 400) and region is not None:
            is_other = region != self._regions.get(bucket, self._region)
            self._regions[bucket] = region
            return is_other and not self._endpoint
        return False


def own_endpoint() -> str | None:
    """Return the endpoint of S3 that the environment names."""
    names = ("S3_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    return next(filter(None, map(os.environ.get, names)), None)


def _s3(options: dict[str, Any], pace: Pace) -> Client | None:
    known = {
        "anon", "endpoint_url", "key", "secret", "token", "profile", "use_ssl", "requester_pays",
        "client_kwargs", "config_kwargs", "max_concurrency", *_BUFFERS,
    }  # fmt: skip
    of_client = {
        "endpoint_url", "region_name", "verify", "use_ssl", "aws_access_key_id",
        "aws_secret_access_key", "aws_session_token",
    }  # fmt: skip
    of_config = {
        "s3", "proxies", "connect_timeout", "read_timeout", "retries", "max_pool_connections",
    }  # fmt: skip
    config = options.get("config_kwargs") or {}
    parts = [
        (options, known),
        (options.get("client_kwargs") or {}, of_client),
        (config, of_config),
        (config.get("s3") or {}, {"addressing_style"}),
    ]
    return S3Client(options, pace) if all(_are_known(*part) for part in parts) else None


class GoogleClient(Client):
    """Objects of Google Cloud Storage, with the credentials of gcsfs, which are google.auth's."""

    marks: ClassVar = {"generation": "x-goog-generation"}

    def __init__(self, filesystem: Any, pace: Pace) -> None:
        super().__init__(Wire(pace))
        self._credentials = filesystem.credentials
        self._url: Callable[[str], str] = filesystem.url
        payer = filesystem.requester_pays
        payer = payer if isinstance(payer, str) else filesystem.project if payer else None
        self._payer = f"&userProject={quote(payer, safe='')}" if payer else ""

    def request(self, url: str, headers: dict[str, str], version: str) -> Request:
        name, _, number = version.partition(" ")
        same = f"&ifGenerationMatch={number}" if name == "generation" and number.isdecimal() else ""
        credentials: dict[str, str] = {}
        self._credentials.maybe_refresh()
        self._credentials.apply(credentials)
        # Objects that are stored compressed come as they are stored.
        stored = {"Accept-Encoding": "gzip", **credentials, **headers}
        return Request(self._url(url) + self._payer + same, stored)


class AzureClient(Client):
    """Blobs of Azure, with azure-storage-blob's URLs and signatures."""

    marks: ClassVar = {"etag": "ETag"}

    def __init__(self, filesystem: Any, pace: Pace) -> None:
        from azure.storage.blob import BlobServiceClient

        super().__init__(Wire(pace))
        self._split: Callable[[str], tuple[str, str, str | None]] = filesystem.split_path
        if filesystem.connection_string:
            self._service = BlobServiceClient.from_connection_string(filesystem.connection_string)
        else:
            credential = (
                filesystem.sync_credential or filesystem.account_key or filesystem.sas_token
            )
            self._service = BlobServiceClient(filesystem.account_url, credential=credential)
        self._token: Any = None

    def request(self, url: str, headers: dict[str, str], version: str) -> Request:
        from azure.core.pipeline import PipelineContext, PipelineRequest
        from azure.core.rest import HttpRequest

        container, name, _ = self._split(url)
        signer = self._service.credential
        headers = {**headers, **_if_match(version), "x-ms-version": self._service.api_version}
        headers["x-ms-date"] = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())
        headers["x-ms-range"] = headers.pop("Range", "")
        headers = {name: value for name, value in headers.items() if value}
        request = HttpRequest(
            "GET", self._service.get_blob_client(container, name).url, headers=headers
        )
        if hasattr(signer, "on_request"):
            signer.on_request(PipelineRequest(request, PipelineContext(None)))
        elif hasattr(signer, "get_token"):
            if self._token is None or self._token.expires_on < time.time() + 300:
                self._token = signer.get_token("https://storage.azure.com/.default")
            request.headers["Authorization"] = f"Bearer {self._token.token}"
        return Request(request.url, dict(request.headers.items()))


class HubClient(Client):
    """Files of the Hugging Face Hub; large ones are redirected to another server."""

    def __init__(self, filesystem: Any, pace: Pace) -> None:
        super().__init__(Wire(pace))
        self._filesystem = filesystem

    def request(self, url: str, headers: dict[str, str], version: str) -> Request:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        at = self._filesystem.resolve_path(url)
        link = hf_hub_url(
            at.repo_id, at.path_in_repo, repo_type=at.repo_type, revision=at.revision,
            endpoint=self._filesystem.endpoint,
        )  # fmt: skip
        return Request(link, {**build_hf_headers(token=self._filesystem.token), **headers})

    def version(self, answer: Answer) -> dict[str, Any]:
        tags = [
            headers.get("X-Linked-Etag") or headers.get("ETag") or ""
            for headers in [*answer.earlier, answer.headers]
        ]
        return {"ETag": next(filter(None, tags), "").removeprefix("W/")}


_GOOGLE = GoogleClient, {"token", "project", "access", "requester_pays", "endpoint_url"}
_AZURE = AzureClient, {
    "account_name", "account_key", "connection_string", "sas_token", "client_id",
    "client_secret", "tenant_id", "anon", "account_host", "max_concurrency",
}  # fmt: skip
#: Clients that take their settings from a file system of fsspec, and its options that they know.
_BY_FILESYSTEM: dict[str, tuple[Callable[[Any, Pace], Client], set[str]]] = {
    "gs": _GOOGLE, "gcs": _GOOGLE, "az": _AZURE, "abfs": _AZURE, "abfss": _AZURE,
    "hf": (HubClient, {"token", "endpoint"}),
}  # fmt: skip


def client_of(
    protocol: str, options: dict[str, Any], pace: Pace, filesystem: Callable[[], Any]
) -> Client | None:
    """Return the client of a protocol; None if it has none, or its client lacks an option.

    Args:
        protocol: protocol of URLs.
        options: the `storage_options`.
        pace: limits on slowness.
        filesystem: opens the file system of fsspec.
    """
    if protocol in ("http", "https"):
        return _web(options, pace)
    if protocol in ("s3", "s3a"):
        return _s3(options, pace)
    if protocol not in _BY_FILESYSTEM:
        return None
    make, known = _BY_FILESYSTEM[protocol]
    return make(filesystem(), pace) if _are_known(options, known | _BUFFERS) else None


def _are_known(options: Any, known: set[str]) -> bool:
    return isinstance(options, dict) and options.keys() <= known


def _first(*values: Any) -> Any:
    """Return the first value that is not None."""
    return next(value for value in values if value is not None)


def _if_match(version: str) -> dict[str, str]:
    name, _, tag = version.partition(" ")
    return {"If-Match": f'"{tag}"'} if name.lower() == "etag" else {}
