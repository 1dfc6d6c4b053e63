"""Samovar keeps a language model hot on your own CPU and serves it with the OpenAI API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from samovar.engine.async_engine import AsyncEngine
    from samovar.engine.engine import Engine
    from samovar.engine.load import EngineOptions
    from samovar.engine.request import Delta, Request, SamplingParams

__version__ = "0.1.0"
__all__ = ["AsyncEngine", "Delta", "Engine", "EngineOptions", "Request", "SamplingParams"]


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used, so that `import samovar` stays cheap."""
    import importlib

    homes = {
        "AsyncEngine": "samovar.engine.async_engine",
        "Engine": "samovar.engine.engine",
        "EngineOptions": "samovar.engine.load",
        "Delta": "samovar.engine.request",
        "Request": "samovar.engine.request",
        "SamplingParams": "samovar.engine.request",
    }
    if name not in homes:
        raise AttributeError(f"module 'samovar' has no attribute {name!r}")
    return getattr(importlib.import_module(homes[name]), name)
