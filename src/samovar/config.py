"""Settings with their sources: flag > environment > config.toml > built-in.

The fields of `Settings` are the one table of options: each carries its default, help, bounds and
names. The options of the command line, the variables `SAMOVAR_*`, the keys of config.toml and
docs/reference/options.md all follow from it.
"""

from __future__ import annotations

import dataclasses
import os
import secrets
import sys
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from samovar.engine.request import MIN_REPEAT_PENALTY
from samovar.errors import SettingError
from samovar.log import json_line
from samovar.option import VARIABLE_PREFIX, Group, Option, check_key

if TYPE_CHECKING:
    from samovar.engine.load import EngineOptions
    from samovar.engine.request import SamplingParams

SourceKind = Literal["flag", "environment", "config.toml", "built-in"]

# Variables that are no option: read where they are used, and no reason for a warning.
OTHER_VARIABLES = {
    "SAMOVAR_CACHE_HOME": (
        "Directory of downloaded models and of what is slow to compute; otherwise "
        "~/.cache/samovar on Linux, ~/Library/Caches/samovar on macOS."
    ),
    "SAMOVAR_CONFIG": "The file to read instead of config.toml in its usual place.",
    "SAMOVAR_TRACEBACK": "1 shows the traceback of an unexpected error.",
}


@dataclass(frozen=True, slots=True)
class Source:
    """Where a value comes from, and what it is called there: `--port`, `SAMOVAR_PORT`, a key."""

    kind: SourceKind
    label: str

    def __str__(self) -> str:
        return self.label


def _option(
    default: Any,
    help: str,
    *,
    group: Group,
    short: str | None = None,
    also: str | None = None,
    metavar: str | None = None,
    choices: tuple[str, ...] = (),
    low: float | None = None,
    high: float | None = None,
    built: bool = True,
    secret: bool = False,
) -> Any:
    metadata = {
        "help": help,
        "group": group,
        "short": short,
        "also": also,
        "metavar": metavar,
        "choices": choices,
        "low": low,
        "high": high,
        "built": built,
        "secret": secret,
    }
    return field(default=default, repr=not secret, metadata=metadata)


_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every option with its effective value; valid by construction (SettingError otherwise).

    None, or 0 where the help says so, means that the value is chosen where it is used.
    """

    model: str | None = _option(
        None,
        "Model to run: smollm2 (the default), gemma3:270m, or the path of a GGUF file.",
        group="model",
        short="-m",
        metavar="MODEL",
    )
    ctx: int = _option(
        0,
        "Tokens of context, prompt and reply together; 0: the model's maximum, at most 4096.",
        group="model",
        metavar="N",
        low=0,
        high=_INT32,
    )
    chat_template: str | None = _option(
        None,
        "Chat template: llama3, zephyr, llama2, chatml, qwen, smollm, gemma, qwen3.5, "
        "qwen3.5-nothink, or a Jinja file; otherwise the model's own.",
        group="model",
        also="--chat",
        metavar="NAME|FILE",
    )
    system: str | None = _option(
        None,
        "System message for conversations that bring none.",
        group="model",
        metavar="TEXT",
    )
    quantize: str | None = _option(
        None,
        "Quantize the weights to this format while loading.",
        group="model",
        metavar="FORMAT",
        built=False,
    )
    offline: bool = _option(False, "Never use the network.", group="model")

    temperature: float = _option(
        0.0,
        "Randomness of the choice of tokens; 0: always the most probable one.",
        group="sampling",
        short="-T",
        low=0,
        high=100,
    )
    top_p: float = _option(
        0.9,
        "Choose among the most probable tokens that together have this probability; 1: all.",
        group="sampling",
        short="-p",
        low=0,
        high=1,
    )
    top_k: int = _option(
        0,
        "Choose among that many most probable tokens; 0: all.",
        group="sampling",
        metavar="N",
        low=0,
        high=_INT32,
    )
    min_p: float = _option(
        0.0,
        "Drop tokens less probable than this share of the most probable one; 0: none.",
        group="sampling",
        low=0,
        high=1,
    )
    repeat_penalty: float = _option(
        1.0,
        "Penalty on recent tokens; 1: none.",
        group="sampling",
        low=MIN_REPEAT_PENALTY,
        high=100,
    )
    repeat_last_n: int = _option(
        64,
        "How many recent tokens the repeat penalty looks at.",
        group="sampling",
        metavar="N",
        low=0,
        high=_INT32,
    )
    seed: int | None = _option(
        None,
        "Seed of the random choices; otherwise a fresh one for each reply.",
        group="sampling",
        short="-s",
        metavar="N",
        low=0,
        high=2**64 - 1,
    )
    max_tokens: int = _option(
        0,
        "Most tokens of a reply; 0: until the context is full.",
        group="sampling",
        short="-n",
        metavar="N",
        low=0,
        high=_INT32,
    )
    stop: tuple[str, ...] = _option(
        (),
        "End the reply before this string (up to four).",
        group="sampling",
        metavar="TEXT",
        high=4,
    )
    eos: tuple[int, ...] = _option(
        (),
        "Token that ends a reply, instead of those that the model declares.",
        group="sampling",
        metavar="ID",
        low=0,
        high=_INT32,
    )

    threads: int = _option(
        0,
        "Threads that compute; 0: the cores that this process may use.",
        group="machine",
        short="-t",
        metavar="N",
        low=0,
        high=1024,
    )
    kv: str = _option(
        "bf16",
        "Type of the numbers in the KV cache.",
        group="machine",
        metavar="f32|bf16|q8",
        choices=("f32", "bf16", "q8"),
    )
    batch: int = _option(
        256,
        "Most tokens computed in one step; never changes a reply.",
        group="machine",
        metavar="N",
        low=1,
        high=16384,
    )
    isa: str | None = _option(
        None,
        "Instruction set: amx, avx512bf16, avx512, avxvnni, avx2, neon_i8mm, neon_dotprod or "
        "portable; otherwise the best of this CPU.",
        group="machine",
        metavar="NAME",
    )

    host: str = _option(
        "127.0.0.1",
        "IP address to listen on, or localhost; 0.0.0.0: all.",
        group="server",
        metavar="ADDRESS",
    )
    port: int = _option(
        8377,
        "Port to listen on; 0: a free one, which is printed.",
        group="server",
        metavar="N",
        low=0,
        high=65535,
    )
    alias: str | None = _option(
        None,
        "Model id in replies and in the list of models.",
        group="server",
        also="--name",
        metavar="NAME",
    )
    api_key: tuple[str, ...] = _option(
        (),
        "Key that requests must show. SAMOVAR_API_KEY keeps it out of the list of processes.",
        group="server",
        metavar="KEY",
        secret=True,
    )
    api_key_file: str | None = _option(
        None,
        "File with further keys, one a line.",
        group="server",
        metavar="FILE",
    )
    cors: tuple[str, ...] = _option(
        (),
        "Origin whose web pages may use the server, such as https://example.org; *: any.",
        group="server",
        metavar="ORIGIN",
    )
    allowed_host: tuple[str, ...] = _option(
        (),
        "Further name that requests may carry in their Host header.",
        group="server",
        metavar="HOST",
    )
    preload: bool = _option(
        True,
        "Load the model before listening, or at the first request.",
        group="server",
    )
    max_sequences: int = _option(
        32,
        "Most requests that run at once; others wait.",
        group="server",
        metavar="N",
        low=1,
        high=4096,
    )
    max_queue: int = _option(
        256,
        "Most requests that wait.",
        group="server",
        metavar="N",
        low=0,
        high=_INT32,
    )
    share_cache: bool = _option(
        False,
        "Let the requests of one API key find what those of another have left in the cache.",
        group="server",
    )
    max_step_ms: int = _option(
        100,
        "Longest step, in milliseconds, while replies wait for their next token and prompts are "
        "read; never changes a reply.",
        group="server",
        metavar="MS",
        low=1,
        high=_INT32,
    )
    cache_dir: str | None = _option(
        None,
        "Directory in which cached prefixes are kept on disk and found again after a restart.",
        group="machine",
        metavar="DIR",
    )
    cache_disk_gb: float = _option(
        10.0,
        "Most disk space for the cached prefixes of a model, in GiB; 0: those that are there are "
        "deleted and none is kept.",
        group="machine",
        metavar="N",
        low=0.0,
        high=1e6,
    )
    speculate: str = _option(
        "auto",
        "Guess a reply's next tokens from its own text; auto: as long as it pays, ngram: wherever "
        "the text repeats itself; never changes a reply.",
        group="machine",
        metavar="auto|ngram|off",
        choices=("auto", "ngram", "off"),
    )
    keep_alive: float | None = _option(
        None,
        "Unload the model after that many idle seconds.",
        group="server",
        metavar="SECONDS",
        low=0,
        built=False,
    )
    drain_timeout: float = _option(
        30.0,
        "Seconds that running replies get to finish when the server is stopped.",
        group="server",
        metavar="SECONDS",
        low=0,
        high=86400,
    )
    log_format: str = _option(
        "text",
        "Form of the log lines.",
        group="server",
        metavar="text|json",
        choices=("text", "json"),
    )

    sources: Mapping[str, Source] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        for option in OPTIONS:
            value = getattr(self, option.name)
            if value != option.default:
                parsed = option.parse(value, str(self.source(option.name)))
                object.__setattr__(self, option.name, parsed)

    @property
    def serves_one_model(self) -> bool:
        """Whether the command line names the model, so that a request's `model` is not checked."""
        return self.source("model").kind == "flag"

    def source(self, name: str) -> Source:
        """Where the value of the option called `name` comes from."""
        return self.sources.get(name, Source("built-in", name))

    def sampling(self, **request: Any) -> SamplingParams:
        """The parameters of one reply: those of `request` that are not None, else these settings.

        Without any seed a fresh one is drawn. Raises RequestError that names a field out of range.
        """
        from samovar.engine.request import SamplingParams

        given = {name: value for name, value in request.items() if value is not None}
        values: dict[str, Any] = {
            name: getattr(self, name)
            for name in SamplingParams.__dataclass_fields__
            if name in Settings.__dataclass_fields__
        }
        values.update(given)
        if values["seed"] is None:
            # 53 bits: a client that keeps numbers as doubles can send the seed back unchanged.
            values["seed"] = secrets.randbits(53)
        return SamplingParams(**values)

    def engine_options(self) -> EngineOptions:
        """How the engine is to run the model."""
        from samovar.engine.load import EngineOptions

        return EngineOptions(
            **{name: getattr(self, name) for name in EngineOptions.__dataclass_fields__}
        )


def _table() -> tuple[Option, ...]:
    hints = typing.get_type_hints(Settings)
    rows = []
    for f in dataclasses.fields(Settings):
        if not f.metadata:
            continue
        kind = hints[f.name]
        multiple = typing.get_origin(kind) is tuple
        if multiple:
            kind = typing.get_args(kind)[0]
        elif isinstance(kind, types.UnionType):
            kind = next(part for part in typing.get_args(kind) if part is not types.NoneType)
        rows.append(
            Option(name=f.name, default=f.default, kind=kind, multiple=multiple, **f.metadata)
        )
    return tuple(rows)


OPTIONS = _table()


def config_path() -> Path:
    """The file of settings: SAMOVAR_CONFIG, or config.toml in the platform's own place."""
    if named := os.environ.get("SAMOVAR_CONFIG"):
        return Path(named)
    import platformdirs

    return Path(platformdirs.user_config_dir("samovar", appauthor=False)) / "config.toml"


def load_settings(flags: Mapping[str, object] | None = None) -> Settings:
    """The effective settings of this process; `flags` are the options given on the command line.

    A flag that is None, or an empty list, was not given. Keys from `api_key_file` are added to
    `api_key`. A variable `SAMOVAR_*` of an unknown name gives a warning on stderr. Raises
    SettingError that names the flag, the variable, or the key and its file.
    """
    values: dict[str, Any] = {}
    sources: dict[str, Source] = {}

    def take(option: Option, value: object, kind: SourceKind, label: str) -> None:
        values[option.name] = option.parse(value, label)
        sources[option.name] = Source(kind, label)

    by_name = {option.name: option for option in OPTIONS}
    path = config_path()
    for key, value in _read_config(path).items():
        if key not in by_name:
            raise SettingError(
                f"{path}: unknown key '{key}'; the keys are {', '.join(sorted(by_name))}."
            )
        take(by_name[key], value, "config.toml", f"{key} in {path}")

    unknown = []
    by_variable = {option.variable: option for option in OPTIONS}
    for variable, value in sorted(os.environ.items()):
        if variable in by_variable:
            take(by_variable[variable], value, "environment", variable)
        elif variable.startswith(VARIABLE_PREFIX) and variable not in OTHER_VARIABLES:
            unknown.append(variable)

    for name, value in (flags or {}).items():
        if value is not None and value != [] and value != ():
            take(by_name[name], value, "flag", by_name[name].flag)

    for variable in unknown:
        text = f"{variable} is no known variable."
        is_json = values.get("log_format") == "json"
        line = json_line(text, level="warning") if is_json else f"samovar: warning: {text}"
        print(line, file=sys.stderr)

    if key_file := values.get("api_key_file"):
        label = str(sources["api_key_file"])
        values["api_key"] = (*values.get("api_key", ()), *_read_keys(Path(key_file), label))
        sources.setdefault("api_key", sources["api_key_file"])
    return Settings(**values, sources=types.MappingProxyType(sources))


def _read_config(path: Path) -> dict[str, object]:
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        if "SAMOVAR_CONFIG" in os.environ:
            raise SettingError(f"SAMOVAR_CONFIG names {path}, which does not exist.") from None
        return {}
    except OSError as error:
        raise SettingError(f"{path} cannot be read: {error.strerror}.") from error
    try:
        return tomllib.loads(text.decode())
    except ValueError as error:  # bad UTF-8 or bad TOML
        raise SettingError(f"{path} is not valid TOML: {error}") from error


def _read_keys(path: Path, label: str) -> tuple[str, ...]:
    try:
        lines = path.expanduser().read_bytes().decode().splitlines()
    except OSError as error:
        raise SettingError(f"{label}: {path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError:
        raise SettingError(f"{label}: {path} is not UTF-8 text.") from None
    keys = tuple(line.strip() for line in lines if line.strip())
    if not keys:
        raise SettingError(f"{label}: {path} holds no key; it needs one a line.")
    for key in keys:
        check_key(key, f"{label}: {path}")
    return keys
