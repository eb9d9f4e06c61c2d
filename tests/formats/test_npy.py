"""Headers of `.npy` files."""

from __future__ import annotations

import gc
import io
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from streampack.files.integer_arrays import npy_header


class Switching:
    """Lets another thread go on when it is collected."""

    itself: object

    def __del__(self) -> None:
        time.sleep(0)


def test_threads_that_read_headers_at_once_find_no_file_damaged() -> None:
    file = io.BytesIO()
    np.save(file, np.arange(9, dtype=np.uint16))
    content = file.getvalue()

    def read(_: int) -> set[object]:
        found = set()
        for _ in range(300):
            garbage = Switching()
            garbage.itself = garbage
            del garbage
            found.add(npy_header(content, len(content)))
        return found

    threshold = gc.get_threshold()
    gc.set_threshold(20)  # so that it is collected while a header is parsed
    try:
        with ThreadPoolExecutor(8) as pool:
            found = set().union(*pool.map(read, range(8)))
    finally:
        gc.set_threshold(*threshold)
    assert found == {npy_header(content, len(content))}
