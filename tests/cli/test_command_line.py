"""The program from outside: option names, one line for each error, exit codes, what goes where."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from samovar import __version__
from samovar.cli import main
from samovar.config import OPTIONS

from .conftest import TINY_MODEL

SAMPLING = (
    "-T --temperature -p --top-p --top-k --min-p --repeat-penalty --repeat-last-n -s --seed "
    "-n --max-tokens --stop --eos"
)
MODEL = "-m --model --offline"
CONTEXT = "--ctx"
CHAT = "--chat-template --chat --system"
MACHINE = "-t --threads --kv --batch --isa"
REPLIES = "--speculate --cache-dir --cache-disk-gb"
BENCH = "--prefill --depths --streams --tokens --repetitions --json --profile"
SERVER = (
    "--host --port --alias --name --api-key --api-key-file --cors --allowed-host --preload "
    "--no-preload --drain-timeout --log-format --max-sequences --max-queue --max-step-ms "
    "--share-cache --no-share-cache"
)


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def run(*arguments: str, stdin: bytes = b"", **variables: str) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(
        [sys.executable, "-m", "samovar", *arguments],
        input=stdin,
        capture_output=True,
        env={**os.environ, **variables},
        timeout=120,
    )
    return subprocess.CompletedProcess(
        arguments, result.returncode, result.stdout.decode(), result.stderr.decode()
    )


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("serve", f"{SAMPLING} {MODEL} {CONTEXT} {CHAT} {MACHINE} {REPLIES} {SERVER}"),
        ("chat", f"{SAMPLING} {MODEL} {CONTEXT} {CHAT} {MACHINE} {REPLIES} --prompt"),
        ("generate", f"{SAMPLING} {MODEL} {CONTEXT} {MACHINE} {REPLIES} --prompt"),
        ("bench", f"{MODEL} {CONTEXT} {MACHINE} {BENCH}"),
        ("info", MODEL),
        ("models", ""),
        ("pull", ""),
    ],
)
def test_a_command_takes_the_options_that_matter_to_it(
    command: str, names: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--help"]) == 0
    listed = set(capsys.readouterr().out.replace(",", " ").replace("|", " ").split())
    assert set(names.split()) <= listed
    for option in OPTIONS:
        if option.built and option.flag not in names.split():
            assert option.flag not in listed
            assert main([command, option.flag, "1"]) == 1
            assert f"No such option: {option.flag}" in capsys.readouterr().err


def test_variables_and_keys_for_other_commands_are_no_fault(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "samovar").mkdir()
    (tmp_path / "samovar/config.toml").write_text('system = "Be brief."\nport = 1\n')
    monkeypatch.setenv("SAMOVAR_CTX", "999")
    monkeypatch.setenv("SAMOVAR_SPECULATE", "ngram")
    monkeypatch.setenv("SAMOVAR_CACHE_DIR", str(tmp_path / "kv"))
    assert main(["info", str(TINY_MODEL)]) == 0
    bench = ["--depths", "none", "--prefill", "1", "--repetitions", "1", "-t", "1"]
    assert main(["bench", "-m", str(TINY_MODEL), *bench]) == 0
    assert capsys.readouterr().err == ""
    assert not (tmp_path / "kv").exists()


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"samovar {__version__}\n"


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "serve" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["doctor"], "No such command"),
        (["list"], "No such command 'list'. Did you mean 'models'?"),
        (["run", "smollm2"], "No such command 'run'. Did you mean 'chat'?"),
        (["rm", "smollm2"], "No such command 'rm'. It is not built in this version."),
        (["serve", "--nonsense"], "No such option: --nonsense"),
        (["chat", "--port", "1"], "No such option: --port"),
        (["serve", "--port", "x"], "--port is 'x', but must be an integer."),
        (["serve", "--host", "example.org"], "--host is 'example.org'"),
        (["serve", "--api-key", ""], "--api-key is empty"),
        (["serve", "--max-queue", "-1"], "--max-queue"),
        (["serve", "--max-step-ms", "0"], "--max-step-ms"),
        (["serve", "--speculate", "maybe"], "auto, ngram, off"),
        (["serve", "--keep-alive", "5"], "--keep-alive: this version"),
        (["generate", "--prompt", "x", "-T", "101"], "--temperature is '101'"),
        (["generate", "--prompt", "x", "-p", "2"], "--top-p is '2'"),
        (["generate"], "--prompt"),
        (["serve", "one", "--model", "two"], "given twice"),
        (["pull"], "MODEL"),
        (["chat", "Hi"], "(Hi); use -m MODEL or --prompt TEXT"),
        (["generate", "a.gguf", "Hi"], "(a.gguf Hi); use -m MODEL or --prompt TEXT"),
        (["bench", "smollm2"], "(smollm2); use -m MODEL"),
        (["bench", "--quantize", "q8_0"], "--quantize: this version"),
    ],
)
def test_an_error_is_one_line_on_stderr(
    arguments: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("samovar: ")
    assert err.count("\n") == 1
    assert part in err


def test_a_bad_variable_stops_a_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SAMOVAR_BATCH", "0")
    assert main(["serve"]) == 1
    assert "SAMOVAR_BATCH is '0', but must be from 1 to" in capsys.readouterr().err


def test_a_fault_of_our_own_is_one_line_unless_the_traceback_is_wanted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # A closed stdout: printing to it raises what no command expects.
    with open(os.devnull, "w") as closed:
        pass
    monkeypatch.setattr(sys, "stdout", closed)
    assert main(["--version"]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "ValueError" in err
    assert "SAMOVAR_TRACEBACK=1" in err
    monkeypatch.setenv("SAMOVAR_TRACEBACK", "1")
    assert main(["--version"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_the_module_runs_as_a_program() -> None:
    result = run("--version")
    assert (result.returncode, result.stdout) == (0, f"samovar {__version__}\n")


def test_a_reader_that_leaves_is_no_error() -> None:
    program = subprocess.Popen(
        [sys.executable, "-m", "samovar", "serve", "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert program.stdout is not None
    assert program.stderr is not None
    program.stdout.close()
    assert program.stderr.read() == b""
    program.stderr.close()
    program.wait(60)
