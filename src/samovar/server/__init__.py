"""The HTTP server: requests of the OpenAI API in, replies of the engine out."""

from __future__ import annotations

from samovar.server.app import create_app
from samovar.server.host import ModelHost
from samovar.server.run import serve

__all__ = ["ModelHost", "create_app", "serve"]
