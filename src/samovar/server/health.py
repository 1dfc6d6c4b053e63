"""GET /health: whether a load balancer may send requests here."""

from __future__ import annotations

import time
from typing import Any

from samovar.server.errors import LAST_REPLY, JsonResponse
from samovar.server.exchange import Exchange
from samovar.server.host import ModelHost

STALLED_AFTER_S = 60.0  # without a step while there is work
RETRY_AFTER_S = 1


async def health(exchange: Exchange) -> None:
    """200 when ready, 503 while loading or draining and once the engine is lost or stalled."""
    exchange.record.is_probe = True
    status, report = _report(exchange.host)
    ready = status == "ok"
    headers = {} if ready else {"retry-after": str(RETRY_AFTER_S)}
    if status == "draining":
        headers |= LAST_REPLY
    body = {"status": status, **report}
    await exchange.reply(JsonResponse(body, 200 if ready else 503, headers))


def _report(host: ModelHost) -> tuple[str, dict[str, Any]]:
    served = host.served
    if served is None:
        if host.draining:
            return "draining", {"loaded": []}
        # Not loaded yet is ready: the first request loads it.
        return ("loading" if host.state == "loading" else "ok"), {"loaded": []}
    stats = served.engine.engine.stats()
    last_step_age_s = time.monotonic() - stats.last_step_at
    report = {
        "loaded": [served.id],
        "running": stats.running,
        "waiting": stats.waiting,
        "blocks_used": stats.blocks_used,
        "blocks_cached": stats.blocks_cached,
        "blocks_total": stats.blocks_total,
        "preemptions": stats.preemptions,
        "steps": stats.steps,
        "last_step_age_s": round(last_step_age_s, 3),
    }
    if host.draining:
        return "draining", report
    if served.engine.failure is not None:
        return "engine_lost", report
    if host.stalled_s() > STALLED_AFTER_S:
        return "stalled", report
    return "ok", report
