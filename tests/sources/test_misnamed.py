"""Paths and files as newcomers name them: what is refused, why, and that what is advised works."""

from __future__ import annotations

import gzip
import json
import logging
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streampack import ConfigError, ContentError, PackedDataset, PackedLoader, Topology, sources
from streampack.storage.storage import Storage
from tests.support.corpora import byte_tokenizer, write_mds, write_tar
from tests.support.flat_files import write_megatron
from tests.support.source_contract import read_all

DOCUMENTS = [np.arange(1, n, dtype=np.uint16) for n in (3, 4, 6)]
TEXTS = [f"text {i}" for i in range(20)]
ALONE: dict[str, Any] = {"seq_len": 64, "lanes": 1, "topology": Topology()}


def texts(path: Path, words: list[str] = TEXTS, encoding: str = "utf-8") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = "".join(json.dumps({"text": text}) + "\n" for text in words).encode(encoding)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def dataset(source: Any, **options: Any) -> PackedDataset:
    return PackedDataset(source, tokenizer=byte_tokenizer(), **{**ALONE, **options})


def delivered(source: Any, **options: Any) -> Counter[str]:
    found: Counter[str] = Counter()
    for batch in dataset(source, **options):
        for number in range(batch.num_documents):
            found[batch.decode(number, byte_tokenizer()).removesuffix("<|endoftext|>")] += 1
    return found


def test_a_file_that_is_named_three_times_is_refused_and_the_advice_reads_it_so_often(
    tmp_path: Path,
) -> None:
    path = str(texts(tmp_path / "a.jsonl"))
    other = str(texts(tmp_path / "b.jsonl", ["other"]))
    advice = r'a\.jsonl" is named 3 times\. Every file is read once.*epochs=.*Mixture'
    for make in (dataset, sources.JSONL, sources.Chat):
        with pytest.raises(ConfigError, match=advice):
            make([path] * 3).prepare() if make is not dataset else make([path] * 3)
    assert delivered(path, epochs=3) == dict.fromkeys(TEXTS, 3)
    mixture = sources.Mixture({"a": path, "b": other}, epochs={"a": 3})
    assert delivered(mixture) == {**dict.fromkeys(TEXTS, 3), "other": 1}


@pytest.mark.parametrize(
    "names",
    [("*.jsonl", "a.jsonl"), ("a.jsonl", "a*"), (".", "a.jsonl"), ("a.jsonl", "{0}/a.jsonl")],
)
def test_two_patterns_that_find_one_file_are_both_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    texts(tmp_path / "a.jsonl")
    first, second = (name.format(tmp_path) for name in names)
    message = f'"{re.escape(first)}" and "{re.escape(second)}" both name .*a.jsonl'
    with pytest.raises(ConfigError, match=message):
        sources.JSONL([first, second]).prepare()


def test_folders_of_mds_and_prefixes_of_megatron_are_read_once_as_well(tmp_path: Path) -> None:
    folder = str(write_mds(tmp_path, DOCUMENTS))
    for twice in ([folder, folder], [folder, f"{folder}/index.json"], [folder, f"{folder}/"]):
        with pytest.raises(ConfigError, match="is named 2 times"):
            sources.MDS(twice, tokens="tokens")
        with pytest.raises(ConfigError, match="is named 2 times"):
            sources.open(twice)
    prefix = tmp_path / "corpus"
    write_megatron(prefix, [[one] for one in DOCUMENTS], "uint16")
    with pytest.raises(ConfigError, match="is named 2 times"):
        sources.MegatronIndexed([str(prefix)] * 2)
    assert len(read_all(sources.MegatronIndexed([f"{prefix}.bin", f"{prefix}.idx"]))) == 3


def test_braces_that_name_a_file_twice_are_refused(tmp_path: Path) -> None:
    path = texts(tmp_path / "a.jsonl")
    with pytest.raises(ConfigError, match=r'"[^"]*\{a,a\}\.jsonl" names .*a\.jsonl more than once'):
        Storage().list(str(path).replace("a.jsonl", "{a,a}.jsonl"))


def test_a_compressed_twin_is_named_once_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    texts(tmp_path / "both" / "a.jsonl")
    texts(tmp_path / "both" / "a.jsonl.gz")
    with caplog.at_level(logging.WARNING):
        assert sum(delivered(str(tmp_path / "both")).values()) == 2 * len(TEXTS)
    said = [record.getMessage() for record in caplog.records if "both read" in record.getMessage()]
    assert len(said) == 1
    assert "a.jsonl and " in said[0]


def test_a_file_and_a_link_to_it_are_one(tmp_path: Path) -> None:
    texts(tmp_path / "a" / "a.jsonl")
    (tmp_path / "a" / "b.jsonl").symlink_to("a.jsonl")
    (tmp_path / "again").symlink_to("a")
    write_mds(tmp_path / "a", DOCUMENTS)
    for twice in ("a", ["a/a.jsonl", "a/b.jsonl"], ["a/a.jsonl", "again/a.jsonl"], "a*/a.jsonl"):
        paths = [str(tmp_path / path) for path in ([twice] if isinstance(twice, str) else twice)]
        with pytest.raises(ConfigError, match=r"are one, by a link.*Name it once"):
            sources.JSONL(paths).prepare()
    for once in ("a/a.jsonl", "a/b.jsonl", "again/a.jsonl"):
        assert sum(delivered(str(tmp_path / once)).values()) == len(TEXTS)
    with pytest.raises(ConfigError, match="are one, by a link"):
        sources.MDS([tmp_path / "a" / "mds", tmp_path / "again" / "mds"])


def test_gzip_and_utf_16_under_the_name_of_a_plain_format_are_named(tmp_path: Path) -> None:
    packed = tmp_path / "a.jsonl"
    packed.write_bytes(gzip.compress(texts(tmp_path / "plain.jsonl").read_bytes()))
    with pytest.raises(ContentError, match=r'a\.jsonl is broken: it is gzip.*Add "\.gz" to its'):
        delivered(str(packed))
    assert sum(delivered(str(packed.rename(tmp_path / "a.jsonl.gz"))).values()) == len(TEXTS)
    plain = texts(tmp_path / "p.jsonl").rename(tmp_path / "p.jsonl.gz")
    with pytest.raises(
        ContentError, match=r'p\.jsonl\.gz is broken: it is not gzip\. .*Take "\.gz"'
    ):
        delivered(str(plain))
    assert sum(delivered(str(plain.rename(tmp_path / "p.jsonl"))).values()) == len(TEXTS)
    other = (tmp_path / "a.jsonl.gz").rename(tmp_path / "a.jsonl.zst")
    with pytest.raises(ContentError, match=r'it is gzip\. .*Let its name end in "\.gz"'):
        delivered(str(other))
    wide = texts(tmp_path / "wide.jsonl", encoding="utf-16")
    with pytest.raises(ContentError, match=r"it is UTF-16.*iconv -f UTF-16 -t UTF-8") as found:
        delivered(str(wide))
    command = re.search(r"iconv -f \S+ -t UTF-8", found.value.remedy)
    assert command is not None
    made = subprocess.run([*command[0].split(), wide], capture_output=True, check=True).stdout
    (tmp_path / "narrow.jsonl").write_bytes(made)
    assert sum(delivered(str(tmp_path / "narrow.jsonl")).values()) == len(TEXTS)
    with pytest.raises(ContentError, match="UTF-16 or binary"):
        delivered(str(texts(tmp_path / "le.jsonl", encoding="utf-16-le")))


def test_a_text_file_is_read_without_its_byte_order_mark_and_refused_if_it_is_no_text(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    contents = {
        "bom": b"\xef\xbb\xbfhello", "wide": "hello".encode("utf-16"), "gz": gzip.compress(b"hi"),
        "le": "hello".encode("utf-16-le"), "latin": "café".encode("latin-1"), "bz": b"BZh as text",
    }  # fmt: skip
    for name, content in contents.items():
        (tmp_path / f"{name}.txt").write_bytes(content)
    assert delivered(str(tmp_path / "bom.txt")) == {"hello": 1}
    assert delivered(str(tmp_path / "bz.txt")) == {"BZh as text": 1}
    for name, message in (
        ("wide", "wide.txt is UTF-16"), ("le", "le.txt is UTF-16 or binary"),
        ("gz", "gz.txt is gzip"), ("latin", "latin.txt is not UTF-8 at byte 3"),
    ):  # fmt: skip
        with pytest.raises(ContentError, match=f"{message}.*on_error"):
            delivered(str(tmp_path / f"{name}.txt"))
    with caplog.at_level(logging.WARNING):
        found = delivered(str(tmp_path), on_error="skip")
    assert found == {"hello": 1, "BZh as text": 1}
    skipped = [line for line in caplog.messages if line.startswith("skipped:")]
    assert len(skipped) == 4
    assert not any("on_error" in line for line in skipped)


def test_a_folder_above_those_of_mds_names_one_of_them(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_mds(tmp_path / name, DOCUMENTS)
    for make in (sources.open, sources.MDS):
        with pytest.raises(ConfigError, match=r"There is no .*a list of those 2") as found:
            make(str(tmp_path)).prepare()
        folder = re.search(r'"([^"]+)"', found.value.remedy)
        assert folder is not None
        assert len(read_all(sources.open(folder[1]))) == 3


def test_a_column_of_mds_and_a_key_of_tar_are_found_by_their_sources(tmp_path: Path) -> None:
    folder = write_mds(tmp_path, DOCUMENTS, hashes=["sha1"])
    assert len(read_all(sources.MDS(folder, validate_hash="sha1"))) == 3
    write_tar(tmp_path / "a.tar", DOCUMENTS)
    found = sources.WebDataset(str(tmp_path / "a.tar"))
    assert (found.column.key, len(read_all(found))) == ("npy", 3)


def test_a_pipe_is_refused_for_what_it_is_wherever_it_is_passed(tmp_path: Path) -> None:
    for command in ("pipe:cat a.tar", "pipe:aws s3 cp s3://a/b -"):
        for source in (command, [command]):
            with pytest.raises(ConfigError, match=r"run a command in a shell.*allow_pipe=True"):
                dataset(source)
    assert delivered(["pipe: what a plumber mends"])  # a text
    with pytest.raises(ConfigError, match="tokens="):
        sources.WebDataset("pipe:cat a.tar", allow_pipe=True).prepare()


def test_a_url_that_names_nothing_is_not_told_of_the_working_directory() -> None:
    with pytest.raises(ConfigError, match=r'Did you mean "s3://corpus/a\.jsonl"'):
        sources.JSONL("s3:/corpus/a.jsonl").prepare()
    with pytest.raises(ConfigError, match="Check the URL") as found:
        sources.JSONL("memory://nowhere/a.jsonl").prepare()
    assert "working directory" not in str(found.value)


def test_files_of_source_code_are_texts_and_images_are_nothing(tmp_path: Path) -> None:
    (tmp_path / "code" / "b").mkdir(parents=True)
    for name in ("a.py", "b/c.py"):
        (tmp_path / "code" / name).write_text("größe = 1\n" * 1000)
    for given in ("code", "code/*.py", "code/a.py"):
        with pytest.raises(ConfigError, match="no kinds") as found:
            sources.open(str(tmp_path / given))
        call = re.search(r"sources\.TextFiles\('(.*?)'\)", found.value.remedy)
        assert call is not None
        assert len(read_all(sources.TextFiles(call[1]))) == (2 if given == "code" else 1)
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n\0")
    with pytest.raises(ConfigError, match=r"a\.png; those are known by") as found:
        sources.open(str(tmp_path / "a.png"))
    assert "sources." not in str(found.value)


def test_files_of_ids_of_another_form_say_which_is_wanted(tmp_path: Path) -> None:
    np.save(tmp_path / "float.npy", np.array([1.5, 2]))
    np.save(tmp_path / "rows.npy", np.arange(20).reshape(4, 5))
    np.arange(1001, dtype=np.uint16).tofile(tmp_path / "a.bin")
    for name, message in (
        ("float.npy", "dtype float64.*Save one dimension of integers"),
        ("rows.npy", r"shape \(4, 5\).*Save one dimension of integers"),
    ):
        with pytest.raises(ContentError, match=message) as found:
            read_all(sources.Tokens(str(tmp_path / name), eos_id=2))
        assert "download" not in str(found.value)
    with pytest.raises(ContentError, match="Pass the dtype= that it was written with"):
        read_all(sources.Tokens(str(tmp_path / "a.bin"), dtype="uint32", eos_id=2))
    assert read_all(sources.Tokens(str(tmp_path / "a.bin"), dtype="uint16", eos_id=2))
    np.save(tmp_path / "ids.npy", np.arange(9, dtype=np.uint16))
    with pytest.raises(ContentError, match="Leave dtype= out"):
        read_all(sources.Tokens(str(tmp_path / "ids.npy"), dtype="uint32", eos_id=2))


def test_a_loader_says_that_all_was_skipped_once(tmp_path: Path) -> None:
    packed = tmp_path / "a.jsonl"
    packed.write_bytes(gzip.compress(texts(tmp_path / "plain.jsonl").read_bytes()))
    loader = PackedLoader(dataset(str(packed), on_error="skip"))
    list(loader)
    assert loader.metrics().skipped == 1  # the file, not each of its lines


def test_a_text_file_is_one_document_and_its_lines_are_documents_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    byte_tokenizer().save("tokenizer.json")
    Path("lines.txt").write_text("\ufeff" + "\n\n".join(TEXTS), encoding="utf-8")
    assert len(read_all(sources.open("lines.txt"))) == 1
    page = Path(__file__).parent.parent.parent / "docs" / "sources.md"
    (code,) = re.findall(r"```python\n(import json\n.*?)```", page.read_text(), flags=re.DOTALL)
    made: dict[str, Any] = {"PackedDataset": PackedDataset}
    exec(code, made)
    for name in ("from_lines", "from_json"):
        found: Counter[str] = Counter()
        for batch in made[name]:
            for number in range(batch.num_documents):
                found[batch.decode(number, byte_tokenizer()).removesuffix("<|endoftext|>")] += 1
        assert found == dict.fromkeys(TEXTS, 1), name
