"""`samovar serve`: the HTTP server."""

from __future__ import annotations

from samovar.cli.options import takes_settings
from samovar.config import Settings


@takes_settings("model", "sampling", "machine", "server", model_argument=True)
def serve(settings: Settings) -> int:
    """Serve a model over HTTP, by default at http://127.0.0.1:8377/v1."""
    from samovar import server
    from samovar.cli.progress import progress_bar

    return server.serve(settings, progress_bar=progress_bar)
