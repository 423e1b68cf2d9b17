"""`/livez`, `/readyz` and `/healthz`: whether this server works. Whoever gets an answer knows; the rest is its form."""

from __future__ import annotations

from aiohttp import web

KINDS = ("healthz", "livez", "readyz")
CHECKS = ("ping", "etcd")
"""Of a real server's many. Here the store is SQLite, in this process: a server that answers has it."""


def answer(request: web.Request) -> web.Response | None:
    """None: that is not what is asked for."""
    kind, _, check = request.path.strip("/").partition("/")
    if kind not in KINDS or (check and check not in CHECKS):
        return None
    if check or "verbose" not in request.query:
        return web.Response(text="ok")
    excluded = request.query.getall("exclude", [])
    lines = [f"[+]{name} excluded: ok" if name in excluded else f"[+]{name} ok" for name in CHECKS]
    return web.Response(text="\n".join([*lines, f"{kind} check passed", ""]))
