"""`samovar serve`: the HTTP server."""

from __future__ import annotations

from samovar.cli.options import takes_settings
from samovar.config import Settings
from samovar.errors import SamovarError
from samovar.log import LOGGER


@takes_settings("model", "sampling", "machine", "server", model_argument=True)
def serve(settings: Settings) -> int:
    """Serve a model over HTTP, by default at http://127.0.0.1:8377/v1."""
    from samovar import server
    from samovar.cli.progress import progress_bar, progress_log

    if settings.log_format != "json":
        return server.serve(settings, progress_bar=progress_bar)
    try:
        return server.serve(settings, progress_bar=progress_log)
    except SamovarError as error:  # a line like all others, for whoever parses them
        LOGGER.critical("%s", error)
        return 1
