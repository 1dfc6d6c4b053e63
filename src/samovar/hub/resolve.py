"""A model's name -> a file on this machine."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from samovar.errors import DownloadError, ModelNotFound, UnsupportedModel
from samovar.hub import cache
from samovar.hub.cache import Progress
from samovar.hub.catalog import CATALOG, DEFAULT_MODEL, KnownModel
from samovar.hub.wheels import Interrupt, fetch

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+|(/[\w.-]+)+)?")


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model file that is here.

    id: what replies call it.  alias, sha256, licence: known for models of the catalog only.
    """

    path: Path
    id: str
    alias: str | None
    sha256: str | None
    licence: str | None


def resolve(
    name: str | None,
    *,
    offline: bool = False,
    progress: Progress | None = None,
    interrupt: Interrupt | None = None,
    catalog: Mapping[str, KnownModel] = CATALOG,
) -> LocalModel:
    """The file of a model, downloaded if need be.

    name: an alias, the path of a GGUF file, or None for the default model.
    progress: called with what is under way, the bytes done, and the bytes in all or None.
    interrupt: lets another thread end the download.
    Raises ModelNotFound, UnsupportedModel, DownloadError.
    """
    wanted = DEFAULT_MODEL if name is None else name
    model = catalog.get(wanted)
    if model is None:
        return _resolve_path(wanted, catalog)
    directory = cache.models_directory()
    if not cache.is_present(model, directory):
        if offline:
            state = "damaged" if (directory / model.file_name).exists() else "not on this machine"
            raise DownloadError(
                f"{wanted} is {state} and downloading is switched off; run "
                f"`samovar pull {wanted}` without --offline once, or give the path of a GGUF file"
            )
        fetch(model, directory, progress=progress, interrupt=interrupt)
    return _local(model, directory)


def missing(name: str | None, *, catalog: Mapping[str, KnownModel] = CATALOG) -> KnownModel | None:
    """The model of the catalog that `resolve` would have to download, or None."""
    model = catalog.get(DEFAULT_MODEL if name is None else name)
    if model is None or cache.is_present(model, cache.models_directory()):
        return None
    return model


def list_models(*, catalog: Mapping[str, KnownModel] = CATALOG) -> list[LocalModel]:
    """The models of the catalog that are on this machine, in its order."""
    directory = cache.models_directory()
    return [_local(m, directory) for m in catalog.values() if cache.is_present(m, directory)]


def _local(model: KnownModel, directory: Path) -> LocalModel:
    path = directory / model.file_name
    return LocalModel(path, model.alias, model.alias, model.sha256, model.licence)


def _resolve_path(name: str, catalog: Mapping[str, KnownModel]) -> LocalModel:
    if not name or "\0" in name:
        raise ModelNotFound(f"{name!r} is no name of a model; {_known(name, catalog)}")
    path = Path(name)
    if name.startswith("~"):
        try:
            path = path.expanduser()
        except RuntimeError as error:
            raise ModelNotFound(f"{name}: {error}") from error
    if path.is_dir():
        raise UnsupportedModel(
            f"{name}: safetensors directories are not supported yet; give the path of a GGUF file"
        )
    if path.is_file():
        return LocalModel(path, path.stem, None, None, None)
    if path.exists():
        raise ModelNotFound(f"{name}: not a regular file; a GGUF file is expected")
    if _REPOSITORY.fullmatch(name) and not (name.count("/") == 1 and name.endswith(".gguf")):
        raise UnsupportedModel(
            f"{name}: there is no such file, and Hugging Face repositories are not supported yet; "
            "download a GGUF file of it and give its path"
        )
    if "/" in name or name.endswith(".gguf"):
        raise ModelNotFound(f"{name}: no such file")
    raise ModelNotFound(f"{name!r} is no known model and no file; {_known(name, catalog)}")


def _known(name: str, catalog: Mapping[str, KnownModel]) -> str:
    close = difflib.get_close_matches(name.lower(), catalog, n=1)
    hint = f"did you mean {close[0]}? Known" if close else "known"
    return f"{hint} names are {', '.join(catalog)}; the path of a GGUF file works too"
