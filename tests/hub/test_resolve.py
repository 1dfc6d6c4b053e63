"""What a name means: an alias, a path, or a clear refusal."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from samovar import hub
from samovar.errors import ModelNotFound, SamovarError, UnsupportedModel
from samovar.hub import CATALOG, DEFAULT_MODEL
from wheel_index import Index, tiny_model


@pytest.mark.parametrize("relative", [False, True])
def test_a_path_is_the_file_and_names_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, relative: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "My.Model-1B.Q4_K_M.gguf"
    path.touch()
    model = hub.resolve(path.name if relative else str(path))
    assert model.path.samefile(path)
    assert (model.id, model.alias, model.sha256) == ("My.Model-1B.Q4_K_M", None, None)


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "m.gguf").touch()
    assert hub.resolve("~/m.gguf").path == tmp_path / "m.gguf"


@pytest.mark.parametrize(
    ("name", "error", "match"),
    [
        ("smolm2", ModelNotFound, r"'smolm2' is no known model.*did you mean smollm2\?"),
        ("SmolLM2", ModelNotFound, r"did you mean smollm2\?"),
        (
            "gpt-5",
            ModelNotFound,
            r"no known model and no file; known names are smollm2, gemma3:270m",
        ),
        ("", ModelNotFound, "is no name of a model"),
        ("a\0b", ModelNotFound, "is no name of a model"),
        ("missing.gguf", ModelNotFound, r"missing\.gguf: no such file"),
        ("./missing.gguf", ModelNotFound, "no such file"),
        ("/no/where/missing.gguf", ModelNotFound, "no such file"),
        ("~nobody-here/missing.gguf", ModelNotFound, "home"),
        ("Qwen/Qwen3-0.6B-GGUF", UnsupportedModel, "Hugging Face repositories are not supported"),
        ("Qwen/Qwen3-0.6B-GGUF:Q8_0", UnsupportedModel, "Hugging Face repositories"),
        ("Qwen/Qwen3-0.6B-GGUF/x.gguf", UnsupportedModel, "no such file, and Hugging Face"),
    ],
)
def test_what_is_no_model_is_refused_clearly(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    error: type[SamovarError],
    match: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=match) as caught:
        hub.resolve(name)
    assert "\n" not in str(caught.value)


def test_directories_and_pipes_are_no_gguf_files(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="safetensors"):
        hub.resolve(str(tmp_path))
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ModelNotFound, match="not a regular file"):
        hub.resolve(str(tmp_path / "pipe.gguf"))


def test_no_name_is_the_default_model(index: Index) -> None:
    tiny = tiny_model()
    model = hub.resolve(None, catalog={DEFAULT_MODEL: tiny})
    assert model.path == index.cache / "tiny.gguf"
    assert DEFAULT_MODEL in CATALOG


def test_the_catalog_is_sound() -> None:
    for alias, model in CATALOG.items():
        assert model.alias == alias
        assert len(model.sha256) == 64
        assert model.parts
        assert "/" not in model.file_name
    assert len({model.file_name for model in CATALOG.values()}) == len(CATALOG)


def test_the_cache_is_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAMOVAR_CACHE_HOME", str(tmp_path))
    assert hub.models_directory() == tmp_path / "models"
    monkeypatch.delenv("SAMOVAR_CACHE_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert hub.models_directory() == tmp_path / "xdg" / "samovar" / "models"
