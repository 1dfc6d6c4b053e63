"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from typing import Any

from samovar.errors import ModelNotFound
from samovar.server.errors import JsonResponse
from samovar.server.exchange import Exchange
from samovar.server.host import ModelHost


async def list_models(exchange: Exchange) -> None:
    """The models of this server, at once: loaded or not."""
    await exchange.reply(JsonResponse({"object": "list", "data": [_model(exchange.host)]}))


async def get_model(exchange: Exchange) -> None:
    """One model by its id, which may hold slashes and colons."""
    if exchange.tail not in exchange.host.names:
        raise ModelNotFound(f"The model '{exchange.tail[:200]}' does not exist on this server.")
    await exchange.reply(JsonResponse(_model(exchange.host)))


def _model(host: ModelHost) -> dict[str, Any]:
    num_ctx = None if host.served is None else host.served.engine.engine.info.num_ctx
    return {
        "id": host.id,
        "object": "model",
        "created": host.created,
        "owned_by": "samovar",
        "max_model_len": num_ctx,
        "context_length": num_ctx,
        "status": host.state,
    }
