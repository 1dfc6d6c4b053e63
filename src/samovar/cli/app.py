"""The table of commands."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Annotated, Any

import typer

from samovar import __version__
from samovar.cli.bench import bench
from samovar.cli.chat import chat, generate
from samovar.cli.models import info, models, pull
from samovar.cli.serve import serve
from samovar.log import end_line

COMMANDS = (serve, chat, generate, pull, models, info, bench)


def command() -> Any:
    """The whole command line as one object of typer's."""
    app = typer.Typer(
        name="samovar",
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(samovar)
    for function in COMMANDS:
        app.command()(_ending_its_line(function))
    return typer.main.get_command(app)


def _ending_its_line(function: Callable[..., int]) -> Callable[..., int]:
    """The command, with the line of ^C ended when Ctrl-C does; typer makes it an exit code."""

    @functools.wraps(function)
    def run(**arguments: Any) -> int:
        try:
            return function(**arguments)
        except KeyboardInterrupt:
            end_line()
            raise

    return run


def samovar(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Serve a language model from your own CPU with the endpoints of the OpenAI API."""
    if version:
        print(f"samovar {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit
