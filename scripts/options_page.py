"""Writes docs/reference/options.md from the table of settings; a test keeps the two equal.

Which command takes which option comes from the commands themselves.

Run it after a change of src/samovar/config.py:  python scripts/options_page.py
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from samovar.cli.app import command
from samovar.cli.options import commands_of
from samovar.config import OPTIONS, OTHER_VARIABLES
from samovar.option import Option

PAGE = Path(__file__).parent.parent / "docs/reference/options.md"
TITLES = {"model": "Model", "sampling": "Sampling", "machine": "Machine", "server": "Server"}
INTRODUCTION = """\
# Options

Each option can be given in three places. The first one that gives it counts:

1. on the command line,
2. in the environment, as `SAMOVAR_` and the name in capitals,
3. in `config.toml`, as a key.

`config.toml` lies in `~/.config/samovar/` on Linux, `~/Library/Application Support/samovar/` on
macOS. An unknown key in it is an error, an unknown variable `SAMOVAR_...` a warning. What a request
to the server says beats all three.

An option that can be given several times is an array in `config.toml`. In the environment it is one
value, or a JSON array: `SAMOVAR_STOP='["User:", "END"]'`. Keys from `api_key_file` are added to
those of `api_key`. Yes and no are `true` and `false`, in the environment also `1` and `0`.

```toml
# config.toml
model = "smollm2"
temperature = 0.7
stop = ["User:"]
```
"""


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for group, title in TITLES.items():
        options = [option for option in OPTIONS if option.group == group]
        rows = [_row(option) for option in options]
        parts.append(
            f"## {title}\n\n{_commands(options)}\n\n"
            "| option | variable | key | values | default | what it does |\n"
            "|---|---|---|---|---|---|\n" + "\n".join(rows) + "\n"
        )
    others = [f"| `{name}` | {text} |" for name, text in OTHER_VARIABLES.items()]
    parts.append(
        "## Other variables\n\n| variable | what it does |\n|---|---|\n" + "\n".join(others) + "\n"
    )
    return "\n".join(parts)


def _commands(options: Sequence[Option]) -> str:
    """Which commands take the options of a group, and which of them take only some."""
    app = command()
    takers = {
        name: [option for option in options if name in commands_of(option, app)]
        for name in app.commands
    }
    sentences = []
    if whole := [f"`{name}`" for name, taken in takers.items() if len(taken) == len(options)]:
        sentences.append(f"For {', '.join(whole)}.")
    for name, taken in takers.items():
        if 0 < len(taken) < len(options):
            flags = ", ".join(f"`{option.flag}`" for option in taken if option.built)
            sentences.append(f"`{name}` takes {flags} of these.")
    return " ".join(sentences)


def _row(option: Option) -> str:
    names = [name for name in (option.flag, option.also, option.short) if name]
    if option.kind is bool:
        names.append(f"--no-{option.flag[2:]}")
    cells = (
        ", ".join(f"`{name}`" for name in names),
        f"`{option.variable}`",
        f"`{option.name}`",
        _values(option),
        _default(option),
        option.help if option.built else f"Not in this version. {option.help}",
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _values(option: Option) -> str:
    if option.choices:
        words = ", ".join(option.choices)
    elif option.kind is bool:
        words = "true, false"
    elif option.kind is str:
        words = "text"
    else:
        noun = "integer" if option.kind is int else "number"
        words = f"{noun} {option.bounds()}"
    return f"{words}; several" if option.multiple else words


def _default(option: Option) -> str:
    if not option.built:
        return ""
    if option.kind is bool:
        return str(option.default).lower()
    if isinstance(option.default, float):
        return f"{option.default:g}"
    return "" if option.default in (None, ()) else str(option.default)


if __name__ == "__main__":
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page())
