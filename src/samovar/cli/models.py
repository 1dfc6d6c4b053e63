"""`samovar pull`, `models` and `info`: the models on this machine."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from samovar.cli.options import takes_settings
from samovar.cli.progress import download_progress
from samovar.config import Settings, load_settings

if TYPE_CHECKING:
    from samovar.checkpoint.base import Checkpoint


def pull(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Name of the model to fetch.")],
) -> int:
    """Download a model, unless it is there, and print where it lies."""
    from samovar import hub

    with download_progress() as progress:
        found = hub.resolve(model, offline=load_settings().offline, progress=progress)
    print(found.path)
    return 0


def models() -> int:
    """List the models that are on this machine."""
    from rich.console import Console
    from rich.table import Table

    from samovar import hub

    table = Table(box=None, pad_edge=False)
    for heading in ("name", "size", "file"):
        table.add_column(heading, justify="right" if heading == "size" else "left", no_wrap=True)
    found = hub.list_models()
    for model in found:
        table.add_row(model.alias or model.id, size(model.path.stat().st_size), str(model.path))
    if found:
        Console(highlight=False, markup=False, soft_wrap=True).print(table)
    else:
        typer.echo("No model is here yet; `samovar pull smollm2` fetches one.", err=True)
    return 0


@takes_settings("model", model_argument=True)
def info(settings: Settings) -> int:
    """Describe a model: architecture, size, formats, context, template, licence, place."""
    from rich.console import Console
    from rich.table import Table

    from samovar import hub
    from samovar.checkpoint import open_checkpoint

    with download_progress() as progress:
        model = hub.resolve(settings.model, offline=settings.offline, progress=progress)
    checkpoint = open_checkpoint(model.path)
    parameters, formats = _weights(checkpoint)
    config = checkpoint.config
    rows = {
        "model": model.alias or model.id,
        "architecture": str(config["model_type"]),
        "parameters": f"{parameters / 1e6:,.1f} million",
        "formats": ", ".join(f"{name} {share:.0%}" for name, share in formats),
        "layers": str(config["num_hidden_layers"]),
        "context": f"{config['max_position_embeddings']} tokens",
        "vocabulary": f"{len(checkpoint.tokenizer.tokens)} tokens",
        "chat template": "none" if checkpoint.chat_template is None else "the model's own",
        "licence": str(config.get("license") or "not stated in the file"),
        "size": size(model.path.stat().st_size),
        "file": str(model.path),
    }
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, value in rows.items():
        table.add_row(name, value)
    Console(highlight=False, markup=False, soft_wrap=True).print(table)
    return 0


def size(num_bytes: int) -> str:
    """`num_bytes` in MiB or GiB, for people."""
    mib = num_bytes / 2**20
    return f"{mib:.1f} MiB" if mib < 1024 else f"{mib / 1024:.2f} GiB"


def _weights(checkpoint: Checkpoint) -> tuple[int, list[tuple[str, float]]]:
    """The number of parameters, and each format's share of their bytes, largest first."""
    parameters = 0
    num_bytes: Counter[str] = Counter()
    for name in checkpoint.unused():  # nobody has asked for any yet: all of them
        tensor = checkpoint.tensor(name)
        parameters += math.prod(tensor.shape)
        num_bytes[tensor.format.name] += tensor.data.nbytes
    total = num_bytes.total() or 1
    return parameters, [(name, n / total) for name, n in num_bytes.most_common()]
