"""Write delta.zip: a Delta table of 24 versions, and its rows at each of them by deltalake.

Run it with deltalake 1.6.6 and pyroaring on the path:
``python -m tests.tables.write_delta tests/tables/delta.zip``.
"""

from __future__ import annotations

import json
import struct
import sys
import tempfile
import uuid
import zipfile
import zlib
from base64 import b85encode
from datetime import date
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyroaring

LANGUAGES = ("de", "en", "fr")
_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def rows(first: int, stop: int, **more: Any) -> pa.Table:
    """Rows with keys [first, stop), texts that name them, and columns of partitions."""
    keys = range(first, stop)
    return pa.table(
        {
            "key": pa.array(keys, pa.int64()),
            "text": [f"document {key}" for key in keys],
            "score": pa.array([key % 97 / 97 for key in keys], pa.float64()),
            "lang": [LANGUAGES[key % 3] for key in keys],
            "day": pa.array([date(2024, 1, 1 + key // 100) for key in keys], pa.date32()),
            **more,
        }
    )


def z85(data: bytes) -> str:
    return b85encode(data).translate(bytes.maketrans(_B85, _Z85)).decode()


def vector_bytes(deleted: list[int]) -> bytes:
    bitmap = pyroaring.BitMap(deleted)
    bitmap.run_optimize()
    return struct.pack("<iqI", 1681511377, 1, 0) + bitmap.serialize()


def delete_by_vector(table: Path, files: dict[str, list[int]], *, inline: bool = False) -> None:
    """Commit deletion vectors for these files, as Spark does; deltalake only reads them."""
    log = table / "_delta_log"
    current = deltalake.DeltaTable(table)
    version = current.version() + 1
    adds = {}
    for commit in sorted(log.glob("*.json")):
        for line in commit.read_text().splitlines():
            action = json.loads(line)
            if "add" in action:
                adds[action["add"]["path"]] = action["add"]
    actions: list[dict[str, Any]] = [{"commitInfo": {"operation": "DELETE", "timestamp": 0}}]
    if current.protocol().min_reader_version < 3:
        features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
        actions.append({"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}})
    data, name = b"\x01", uuid.uuid5(uuid.NAMESPACE_OID, str(version))
    for path, deleted in files.items():
        vector = vector_bytes(deleted)
        where: dict[str, Any] = {
            "storageType": "i",
            "pathOrInlineDv": z85(vector + bytes(-len(vector) % 4)),
        }
        if not inline:
            where = {"storageType": "u", "pathOrInlineDv": z85(name.bytes), "offset": len(data)}
            data += struct.pack(">i", len(vector)) + vector + struct.pack(">I", zlib.crc32(vector))
        add = dict(adds[path])
        before = {"deletionVector": add["deletionVector"]} if "deletionVector" in add else {}
        removed = {"path": path, "deletionTimestamp": 0, "dataChange": True, **before}
        add["deletionVector"] = {**where, "sizeInBytes": len(vector), "cardinality": len(deleted)}
        actions += [{"remove": removed}, {"add": {**add, "dataChange": True}}]
    if not inline:
        (table / f"deletion_vector_{name}.bin").write_bytes(data)
    (log / f"{version:020}.json").write_text("\n".join(map(json.dumps, actions)))


def write(table: Path) -> None:
    """Write the versions."""

    def append(part: pa.Table, **options: Any) -> None:
        deltalake.write_deltalake(table, part, mode="append", **options)

    def opened() -> deltalake.DeltaTable:
        return deltalake.DeltaTable(table)

    deltalake.write_deltalake(table, rows(0, 300), partition_by=["lang", "day"])  # 0
    append(rows(300, 420))  # 1
    opened().delete("key < 40 AND lang = 'en'")  # 2
    opened().update(updates={"text": "'updated'"}, predicate="key % 50 = 7")  # 3
    append(rows(420, 500, added=pa.array(range(80))), schema_mode="merge")  # 4
    opened().optimize.compact()  # 5
    merged = rows(490, 520, added=pa.array(range(30)))
    (
        opened()
        .merge(merged, "t.key = s.key", source_alias="s", target_alias="t")
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .execute()
    )  # 6
    opened().create_checkpoint()
    opened().delete("day = '2024-01-02'")  # 7
    append(rows(520, 530, added=pa.array(range(10))))  # 8
    opened().optimize.z_order(["score"])  # 9
    opened().delete("score < 0.1")  # 10
    plain = {"key": [530], "text": ["no language"], "score": [0.5]}
    append(pa.table({**plain, "lang": pa.array([None], pa.string())}), schema_mode="merge")  # 11
    opened().restore(8)  # 12
    opened().update(updates={"text": "'again'"}, predicate="lang = 'de' AND key > 400")  # 13
    opened().create_checkpoint()
    append(rows(600, 640, added=pa.array(range(40))))  # 14
    opened().optimize.compact()  # 15
    append(rows(640, 900, added=pa.array(range(260))))  # 16
    deltalake.write_deltalake(
        table,
        rows(700, 720, added=pa.array(range(20))),
        mode="overwrite",
        predicate="day = '2024-01-08'",
    )  # 17
    opened().delete("key % 10 = 0")  # 18
    append(rows(1000, 1100, added=pa.array(range(100))))  # 19
    sizes = pa.table(opened().get_add_actions(flatten=True)).to_pylist()
    largest = sorted(sizes, key=lambda each: (-each["num_records"], each["path"]))
    one, two, three = (each["path"] for each in largest[:3])
    delete_by_vector(table, {one: [0, 1, 2, 3, 5], two: [7]})  # 20
    delete_by_vector(table, {one: [0, 1, 2, 3, 5, 8, 9, 10]})  # 21
    delete_by_vector(table, {three: [1]}, inline=True)  # 22


def expected(table: Path) -> dict[int, list[list[Any]]]:
    """Return key, text and partition of all rows at every version, by deltalake."""
    found = {}
    for version in range(deltalake.DeltaTable(table).version() + 1):
        opened = deltalake.DeltaTable(table, version=version)
        reader = deltalake.QueryBuilder().register("t", opened)
        answer = pa.table(reader.execute("select key, text, lang, day from t order by key, text"))
        columns = [answer.column(name).to_pylist() for name in ("key", "text", "lang", "day")]
        found[version] = [
            [k, t, lang, day and str(day)] for k, t, lang, day in zip(*columns, strict=True)
        ]
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder, "table")
        write(table)
        Path(folder, "expected.json").write_text(json.dumps(expected(table)))
        with zipfile.ZipFile(sys.argv[1], "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted(Path(folder).rglob("*")):
                if file.is_file() and not file.name.endswith(".crc"):
                    archive.write(file, file.relative_to(folder))


if __name__ == "__main__":
    main()
