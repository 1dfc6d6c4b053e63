"""What is printed once the server listens: what runs, where, and how to try it."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any

from samovar import __version__
from samovar.config import Settings
from samovar.log import json_line
from samovar.server.host import ServedModel

Facts = Mapping[str, Any]


def banner(
    settings: Settings, model_id: str, served: ServedModel | None, address: tuple[Any, ...]
) -> str:
    """The lines for people, or with --log-format json all of it as one line.

    address: where it listens, the first place of several.
    """
    facts = _facts(settings, model_id, served, address)
    if settings.log_format == "json":
        return json_line("listening", facts)
    return "\n".join(_lines(facts))


def _facts(
    settings: Settings, model_id: str, served: ServedModel | None, address: tuple[Any, ...]
) -> Facts:
    """What there is to tell; what does not apply is left out."""
    host, port = address[:2]
    shown = "localhost" if settings.host == "localhost" else _in_url(host)
    facts: dict[str, Any] = {"version": __version__, "model": model_id}
    has_template = True
    if served is not None:
        info = served.engine.engine.info
        has_template = info.template_name is not None
        facts |= {
            "isa": info.isa,
            "architecture": info.architecture,
            "parameters": info.num_parameters,
            "load_s": round(info.load_s, 3),
            "context": info.num_ctx,
            "max_context": info.max_ctx,
            "chat_template": info.template_name,
            "threads": info.threads,
            "kv": info.kv,
            "weight_bytes": info.weight_bytes,
            "activation_bytes": info.buffer_bytes,
            "kv_bytes": info.kv_bytes,
        }
    if settings.cache_dir is not None:
        facts |= {"cache_dir": settings.cache_dir, "cache_disk_gb": settings.cache_disk_gb}
    if settings.speculate != "auto":
        facts["speculate"] = settings.speculate
    if settings.api_key:
        facts["api_keys"] = len(set(settings.api_key))
    facts["url"] = f"http://{shown}:{port}/v1"
    if not (_is_loopback(host) or settings.api_key):
        facts["warning"] = (
            "everyone who can reach this address can use the server; "
            "set a key with SAMOVAR_API_KEY."
        )
    facts["try"] = _curl(host, port, has_key=bool(settings.api_key), has_template=has_template)
    return facts


def _lines(facts: Facts) -> list[str]:
    if "isa" in facts:
        lines = _model_lines(facts)
    else:
        lines = [
            f"samovar {facts['version']}",
            f"model     {facts['model']}, loaded at the first request",
        ]
    if "cache_dir" in facts:
        lines.append(f"on disk   {facts['cache_dir']}, up to {facts['cache_disk_gb']:g} GiB")
    if "speculate" in facts:
        lines.append(f"speculate {facts['speculate']}")
    if "api_keys" in facts:
        lines.append(f"API keys  {facts['api_keys']}")
    lines.append(f"listening on {facts['url']}")
    if "warning" in facts:
        lines.append(f"warning: {facts['warning']}")
    return [*lines, "try it:", f"  {facts['try']}"]


def _model_lines(facts: Facts) -> list[str]:
    weights, activations = facts["weight_bytes"], facts["activation_bytes"]
    planned = weights + activations + facts["kv_bytes"]
    return [
        f"samovar {facts['version']}, {facts['isa']}",
        f"model     {facts['model']}: {facts['architecture']}, "
        f"{facts['parameters'] / 1e6:.0f}M parameters, loaded in {facts['load_s']:.2f} s",
        f"context   {facts['context']} of {facts['max_context']} tokens",
        f"template  {facts['chat_template'] or 'none: chat requests are refused'}",
        f"threads   {facts['threads']}",
        f"KV cache  {facts['kv']}",
        f"memory    {_mb(planned)} planned: weights {_mb(weights)}, "
        f"activations {_mb(activations)}, KV cache up to {_mb(facts['kv_bytes'])}",
    ]


def _curl(host: str, port: int, *, has_key: bool, has_template: bool) -> str:
    """A command to paste; the reader puts the key in, which is not to be shown."""
    if ipaddress.ip_address(host.partition("%")[0]).is_unspecified:
        host = "127.0.0.1" if ":" not in host else "::1"
    path, body = "completions", '{"prompt": "Once upon a time", "max_tokens": 32}'
    if has_template:
        path = "chat/completions"
        body = '{"messages": [{"role": "user", "content": "Why is the sky blue?"}]}'
    key = " -H 'Authorization: Bearer KEY'" if has_key else ""
    return (
        f"curl http://{_in_url(host)}:{port}/v1/{path}{key} "
        f"-H 'Content-Type: application/json' -d '{body}'"
    )


def _in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _mb(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.0f} MB"
