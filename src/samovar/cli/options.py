"""Options of commands, made from the table of settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Annotated, Any

import typer

from samovar.config import OPTIONS, load_settings
from samovar.errors import SettingError
from samovar.option import Group, Option

_PANELS: dict[Group, str] = {
    "model": "Model",
    "sampling": "Sampling",
    "machine": "Machine",
    "server": "Server",
}
_METAVARS = {int: "N", float: "X", str: "TEXT"}
_PREFIX = "setting_"  # keeps the table's names apart from those of a command's own parameters
_MODEL_ARGUMENT = inspect.Parameter(
    "model_argument",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[str | None, typer.Argument(metavar="MODEL", help="The same as --model.")],
)


def takes_settings(
    *groups: Group, without: Collection[str] = (), model_argument: bool = False
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """A decorator that gives a command the options of `groups`, as one argument `settings`.

    The command's own parameters stay. without: names of options that change nothing for it; as
    variables and in config.toml they are meant for others.
    model_argument: MODEL can also be given without `--model`.
    """
    rows = [option for option in OPTIONS if option.group in groups and option.name not in without]

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        signature = inspect.signature(command, eval_str=True)
        parameters = [p for p in signature.parameters.values() if p.name != "settings"]
        parameters += [_MODEL_ARGUMENT] if model_argument else []
        parameters += [_parameter(option) for option in rows]

        def run(**arguments: Any) -> int:
            flags = {row.name: arguments.pop(_PREFIX + row.name) for row in rows}
            if (model := arguments.pop(_MODEL_ARGUMENT.name, None)) is not None:
                if flags["model"] is not None:
                    raise SettingError("The model is given twice: as MODEL and as --model.")
                flags["model"] = model
            return command(settings=load_settings(flags), **arguments)

        run.__doc__ = command.__doc__
        run.__name__ = command.__name__
        # typer reads both to learn the options.
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        return run

    return decorate


def commands_of(option: Option, app: Any) -> list[str]:
    """The names of the commands of `app`, an object of typer's, that take an option."""
    name = _PREFIX + option.name
    return [
        command.name
        for command in app.commands.values()
        if name in {p.name for p in command.params}
    ]


def help_text(option: Option) -> str:
    """What the option does, with its built-in default where that is a value of its own."""
    if option.kind is bool or option.default in (None, ()):
        return option.help
    default = f"{option.default:g}" if isinstance(option.default, float) else option.default
    return f"{option.help} Default: {default}."


def _parameter(option: Option) -> inspect.Parameter:
    if option.kind is bool:
        positive = option.flag
        names = [f"{positive}/--no-{positive[2:]}"]
        kind: Any = bool | None
    else:
        names = [name for name in (option.flag, option.also, option.short) if name]
        # Text here: the table itself reads and checks it, as it does for the other sources.
        kind = list[str] | None if option.multiple else str | None
    info = typer.Option(
        *names,
        help=help_text(option),
        metavar=None if option.kind is bool else option.metavar or _METAVARS[option.kind],
        show_default=False,
        hidden=not option.built,
        rich_help_panel=_PANELS[option.group],
    )
    return inspect.Parameter(
        _PREFIX + option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind, info],
    )
