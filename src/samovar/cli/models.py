"""`samovar pull`, `models` and `info`: the models on this machine."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from samovar.cli.options import takes_settings
from samovar.cli.progress import progress_bar
from samovar.cli.reply import find_model
from samovar.cli.table import print_table
from samovar.config import Settings, load_settings
from samovar.log import escape

if TYPE_CHECKING:
    from samovar.checkpoint import Checkpoint


def pull(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Name of the model to fetch.")],
) -> int:
    """Download a model, unless it is there, and print where it lies."""
    from samovar import hub

    with progress_bar() as progress:
        found = hub.resolve(model, offline=load_settings().offline, progress=progress)
    print(found.path)
    return 0


def models() -> int:
    """List the models that are on this machine."""
    from rich.table import Table

    from samovar import hub

    table = Table(box=None, pad_edge=False)
    for heading in ("name", "size", "file"):
        table.add_column(heading, justify="right" if heading == "size" else "left")
    found = hub.list_models()
    for model in found:
        table.add_row(model.alias or model.id, size(model.path.stat().st_size), str(model.path))
    if found:
        print_table(table)
    else:
        typer.echo("No model is here yet; `samovar pull smollm2` fetches one.", err=True)
    return 0


@takes_settings("model", without=("chat_template", "ctx", "system"), model_argument=True)
def info(settings: Settings) -> int:
    """Describe a model: architecture, size, formats, context, template, licence, place."""
    from samovar import hub
    from samovar.checkpoint import open_checkpoint

    if (absent := hub.missing(settings.model)) is not None:
        _print_rows(
            {
                "model": absent.alias,
                "title": absent.title,
                "licence": absent.licence,
                "size": size(absent.num_bytes),
                "file": f"not here yet; `samovar pull {absent.alias}` fetches it",
            }
        )
        return 0
    model = find_model(settings)
    checkpoint = open_checkpoint(model.path)
    config = checkpoint.config
    rows: dict[str, object] = {
        "model": model.alias or model.id,
        "title": checkpoint.title or "not stated in the file",
        "architecture": config["model_type"],
        "parameters": f"{sum(math.prod(t.shape) for t in checkpoint.tensors()) / 1e6:.1f} million",
        "formats": _formats(checkpoint),
        "layers": config["num_hidden_layers"],
        "context": f"{config['max_position_embeddings']} tokens",
        "vocabulary": f"{len(checkpoint.tokenizer.tokens)} tokens",
        "chat template": "none" if checkpoint.chat_template is None else "the model's own",
        "licence": model.licence or checkpoint.licence or "not stated in the file",
        "size": size(model.path.stat().st_size),
        "file": model.path,
    }
    _print_rows(rows)
    return 0


def _print_rows(rows: Mapping[str, object]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    for name, value in rows.items():
        table.add_row(name, escape(str(value)))  # what a file says must not command the terminal
    print_table(table)


def size(num_bytes: int) -> str:
    """`num_bytes` in MB (10^6) or GB, for people."""
    mb = num_bytes / 1e6
    return f"{mb:.0f} MB" if mb < 1000 else f"{mb / 1000:.2f} GB"


def _formats(checkpoint: Checkpoint) -> str:
    """The formats of the weights with their shares of the bytes, largest first."""
    num_bytes: Counter[str] = Counter()
    for tensor in checkpoint.tensors():
        num_bytes[tensor.format.name] += tensor.num_bytes
    total = num_bytes.total() or 1
    return ", ".join(f"{name} {n / total:.1%}" for name, n in num_bytes.most_common())
