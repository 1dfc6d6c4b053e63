"""Settings: precedence, sources, and errors that name where a bad value stands."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

from samovar.config import OPTIONS, Settings, config_path, load_settings
from samovar.engine.request import SamplingParams
from samovar.errors import RequestError, SettingError
from samovar.option import Option


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable and no file of the machine that runs the tests."""
    for option in OPTIONS:
        monkeypatch.delenv(option.variable, raising=False)
    monkeypatch.delenv("SAMOVAR_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-config"))


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    path = tmp_path / "my.toml"
    monkeypatch.setenv("SAMOVAR_CONFIG", str(path))
    return path


def test_built_in_defaults() -> None:
    settings = load_settings({})
    assert (settings.host, settings.port) == ("127.0.0.1", 8377)
    assert (settings.temperature, settings.top_p, settings.top_k, settings.min_p) == (0, 0.9, 0, 0)
    assert (settings.repeat_penalty, settings.repeat_last_n) == (1, 64)
    assert (settings.max_tokens, settings.seed, settings.ctx) == (0, None, 0)
    assert (settings.kv, settings.batch, settings.max_sequences) == ("bf16", 256, 32)
    assert (settings.max_queue, settings.drain_timeout, settings.preload) == (256, 30, True)
    assert settings.source("port").kind == "built-in"


def test_flag_beats_environment_beats_file_beats_built_in(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text("port = 1\nbatch = 2\nthreads = 3\n")
    monkeypatch.setenv("SAMOVAR_PORT", "10")
    monkeypatch.setenv("SAMOVAR_BATCH", "20")
    settings = load_settings({"port": "100"})
    assert (settings.port, settings.batch, settings.threads) == (100, 20, 3)
    sources = [settings.source(name) for name in ("port", "batch", "threads", "ctx")]
    assert [s.kind for s in sources] == ["flag", "environment", "config.toml", "built-in"]
    assert [s.label for s in sources] == ["--port", "SAMOVAR_BATCH", f"threads in {config}", "ctx"]


def test_the_file_lies_in_the_platforms_own_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = config_path()
    assert path.name == "config.toml"
    assert path.parent.name == "samovar"
    path.parent.mkdir(parents=True)
    path.write_text('kv = "q8"\n')
    assert load_settings().kv == "q8"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("prot = 1", ["my.toml", "unknown key 'prot'", "port"]),
        ("port = 99999", ["port in", "my.toml", "99999", "from 0 to 65535"]),
        ('port = "x"', ["port in", "'x'", "an integer"]),
        ("port = true", ["port in", "an integer"]),
        ("preload = 3", ["preload in", "true or false"]),
        ("alias = 3", ["alias in", "a string"]),
        ("stop = ['a', 2]", ["stop in", "2", "a string"]),
        ("port 3", ["my.toml", "not valid TOML"]),
        ("[server]\nport = 3", ["unknown key 'server'"]),
    ],
)
def test_a_bad_file_is_an_error_that_names_it(config: Path, text: str, parts: list[str]) -> None:
    config.write_text(text)
    with pytest.raises(SettingError) as caught:
        load_settings()
    assert all(part in str(caught.value) for part in parts), str(caught.value)


def test_a_named_file_must_exist(config: Path) -> None:
    with pytest.raises(SettingError, match="does not exist"):
        load_settings()


def test_a_file_that_is_not_text(config: Path) -> None:
    config.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingError, match="not valid TOML"):
        load_settings()


@pytest.mark.parametrize(
    ("variable", "value", "part"),
    [
        ("SAMOVAR_TEMPERATURE", "warm", "must be a number"),
        ("SAMOVAR_TEMPERATURE", "nan", "from 0 to 100"),
        ("SAMOVAR_PRELOAD", "perhaps", "true or false"),
        ("SAMOVAR_KV", "f16", "one of f32, bf16, q8"),
        ("SAMOVAR_HOST", "example.org", "IP address or 'localhost'"),
        ("SAMOVAR_CORS", "example.org", "an origin"),
        ("SAMOVAR_CORS", "https://example.org/", "an origin"),
        ("SAMOVAR_STOP", "[1", "no JSON array"),
        ("SAMOVAR_SEED", "-1", "from 0 to"),
        ("SAMOVAR_SEED", "9" * 5000, "must be an integer"),
        ("SAMOVAR_API_KEY", "", "is empty"),
    ],
)
def test_a_bad_variable_is_an_error_that_names_it(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, part: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingError) as caught:
        load_settings()
    assert variable in str(caught.value)
    assert part in str(caught.value)


def test_an_unknown_variable_gives_a_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SAMOVAR_PROT", "1")
    load_settings()
    assert "SAMOVAR_PROT" in capsys.readouterr().err


def test_several_values(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text("eos = [1, 2]\n")
    monkeypatch.setenv("SAMOVAR_STOP", '["a, b", "c"]')
    monkeypatch.setenv("SAMOVAR_CORS", "https://example.org")
    settings = load_settings({"allowed_host": ["a", "b"]})
    assert settings.eos == (1, 2)
    assert settings.stop == ("a, b", "c")
    assert settings.cors == ("https://example.org",)
    assert settings.allowed_host == ("a", "b")


@pytest.mark.parametrize("name", [option.name for option in OPTIONS if not option.built])
def test_what_is_not_built_is_refused_and_never_ignored(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"SAMOVAR_{name.upper()}", "1")
    with pytest.raises(SettingError, match="cannot do that yet"):
        load_settings()


def test_settings_made_by_hand_are_checked_too() -> None:
    with pytest.raises(SettingError, match="port is 70000"):
        Settings(port=70000)
    with pytest.raises(SettingError, match="at most 4"):
        Settings(stop=("a", "b", "c", "d", "e"))
    with pytest.raises(SettingError, match="stop is empty"):
        Settings(stop=("",))


def test_keys_come_from_all_places_and_are_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keys").write_text("first\n\n second \n")
    monkeypatch.setenv("SAMOVAR_API_KEY", "third")
    settings = load_settings({"api_key_file": str(tmp_path / "keys")})
    assert set(settings.api_key) == {"first", "second", "third"}
    assert "third" not in repr(settings)
    with pytest.raises(SettingError) as caught:
        Settings(api_key=("two words",))
    assert "two words" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\xff"])
def test_a_key_file_without_a_usable_key(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "keys").write_bytes(content)
    with pytest.raises(SettingError, match="--api-key-file"):
        load_settings({"api_key_file": str(tmp_path / "keys")})


def test_a_missing_key_file() -> None:
    with pytest.raises(SettingError, match="--api-key-file: /nowhere/keys cannot be read"):
        load_settings({"api_key_file": "/nowhere/keys"})


def test_one_model_is_served_only_when_the_command_line_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SAMOVAR_MODEL", "smollm2")
    assert not load_settings().serves_one_model
    assert load_settings({"model": "smollm2"}).serves_one_model


def test_sampling_takes_the_request_first_then_the_settings() -> None:
    settings = Settings(temperature=0.5, top_k=7, seed=3)
    params = settings.sampling(temperature=0.0, top_k=None, frequency_penalty=1.0)
    assert (params.temperature, params.top_k, params.seed) == (0.0, 7, 3)
    assert (params.frequency_penalty, params.top_p) == (1.0, 0.9)
    with pytest.raises(RequestError) as caught:
        settings.sampling(top_p=2.0)
    assert caught.value.param == "top_p"


SAMPLING = [option for option in OPTIONS if option.name in SamplingParams.__dataclass_fields__]


@pytest.mark.parametrize("option", SAMPLING, ids=lambda option: option.name)
def test_settings_and_requests_have_the_same_bounds(option: Option) -> None:
    for bound, beyond in ((option.low, -math.inf), (option.high, math.inf)):
        assert bound is not None
        inside = option.kind(bound)
        outside = math.nextafter(bound, beyond) if option.kind is float else inside + 1
        if option.kind is int and beyond < 0:
            outside = inside - 1
        assert getattr(Settings(**{option.name: inside}).sampling(), option.name) == inside
        with pytest.raises(SettingError, match=option.name):
            Settings(**{option.name: outside})
        with pytest.raises(RequestError) as caught:
            Settings().sampling(**{option.name: outside})
        assert caught.value.param == option.name


def test_without_a_seed_each_reply_gets_a_fresh_one_that_a_double_holds() -> None:
    seeds = {Settings().sampling().seed for _ in range(50)}
    assert len(seeds) == 50
    assert all(int(float(seed)) == seed for seed in seeds)


def test_settings_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().port = 1  # type: ignore[misc]
