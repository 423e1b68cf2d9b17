"""Starting and stopping the API server: state directory, certificates, listening sockets, controllers."""

from __future__ import annotations

import asyncio
import asyncio.sslproto
import contextlib
import ipaddress
import os
import signal
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass

from aiohttp import web

from onward.errors import UsageError
from onward.local.api import certs, crds, garbage
from onward.local.api.registry import Registry
from onward.local.api.request import Target, WriteOptions
from onward.local.api.rest import Api
from onward.local.api.server import Server
from onward.local.api.settings import MANAGER, Settings
from onward.local.api.store import Change, Store, StoreError
from onward.local.daemon import LONGEST_LINE
from onward.local.unreadable import server_log

asyncio.sslproto.SSLProtocol.max_size = 32 * 1024  # type: ignore[attr-defined]
"""What each connection has as a buffer for reading, from its first byte on; 256 KiB otherwise, also for those who only
wait, or never say anything."""
NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")


@dataclass
class Running:
    """A server that answers."""

    url: str
    port: int
    api: Api
    server: Server
    token: str


def _bind(settings: Settings) -> list[socket.socket]:
    remembered = settings.state / "port"
    port = settings.port
    if not port and remembered.exists():
        port = int(remembered.read_text(encoding="utf-8") or 0)
    found: list[socket.socket] = []
    for host in (settings.host, *settings.extra_hosts):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            try:
                listener.bind((host, port))
            except OSError:
                if settings.port or found:
                    raise
                listener.bind((host, 0))  # the remembered port was ours to choose; another is as good
        except OSError as error:
            for each in (listener, *found):
                each.close()
            raise UsageError(
                f"cannot listen on {host}:{port}: {error.strerror}; "
                "stop who holds that port, or choose another with --port"
            ) from None
        port = listener.getsockname()[1]
        found.append(listener)
    certs.write_private(remembered, str(port))
    return found


def _make_state(settings: Settings) -> None:
    try:
        settings.state.mkdir(parents=True, exist_ok=True)
        os.chmod(settings.state, 0o700)
    except OSError as error:
        raise UsageError(f"cannot use {settings.state} as state directory: {error.strerror}; choose another") from None


def follow_crds(api: Api) -> None:
    """Serves what CRDs define, from now on and as of now."""

    def changed(change: Change) -> None:
        name = change.key[2]
        if change.type == "DELETED" or not crds.established(change.item.body):
            api.registry.set_custom(name, [])
        else:
            api.registry.set_custom(name, crds.resources(change.item.body))

    for (_, name), item in api.store.all(crds.KEY):
        if crds.established(item.body):
            api.registry.set_custom(name, crds.resources(item.body))
    api.store.listen(crds.KEY, changed)


async def _first_objects(api: Api) -> None:
    """What every cluster has from the beginning."""
    options = WriteOptions(field_manager=MANAGER)
    namespaces = api.registry.find("", "v1", "namespaces")
    classes = api.registry.find("scheduling.k8s.io", "v1", "priorityclasses")
    assert namespaces is not None
    assert classes is not None
    for name in NAMESPACES:
        if api.store.get(("namespaces", "", name)) is None:
            await api.create(Target(namespaces, "", "", ""), {"metadata": {"name": name}}, options)
    for name, value in (("system-node-critical", 2000001000), ("system-cluster-critical", 2000000000)):
        if api.store.get((classes.key, "", name)) is None:
            await api.create(Target(classes, "", "", ""), {"metadata": {"name": name}, "value": value}, options)


@contextlib.asynccontextmanager
async def serve(settings: Settings) -> AsyncIterator[Running]:
    """An API server for as long as the context lasts. Raises UsageError for what the user can mend."""
    _make_state(settings)
    try:
        store = Store(settings.state / "api.db", history=settings.history, max_pages=settings.max_pages)
    except StoreError as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise UsageError(f"cannot use {settings.state} as state directory: {error.strerror}; choose another") from None
    try:
        sockets = _bind(settings)
        # The first address of the service range is the API's own, as pods see it (a forwarder brings them here).
        inside = str(next(ipaddress.ip_network(settings.service_range).hosts()))
        hosts = (settings.host, inside, *settings.extra_hosts)
        ca, crt, key = certs.ensure(settings.state, hosts)
        admin = certs.token(settings.state, "admin.token")
        node = certs.token(settings.state, "node.token")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(crt, key)
        port = sockets[0].getsockname()[1]
        api = Api(settings, store, Registry())
        follow_crds(api)
        await _first_objects(api)
        shown = f"[{settings.host}]" if ":" in settings.host else settings.host
        server = Server(api, {admin: "admin", node: "onward:node"}, f"{shown}:{port}")
        runner = web.AppRunner(
            server.app, access_log=None, shutdown_timeout=1.0, handler_cancellation=True,
            max_line_size=LONGEST_LINE, max_field_size=LONGEST_LINE, logger=server_log("local.api"),
        )  # fmt: skip
        await runner.setup()
        tasks = garbage.start(api)
        try:
            for listener in sockets:
                await web.SockSite(runner, listener, ssl_context=context).start()
            url = f"https://{shown}:{port}"
            certs.kubeconfig(settings.state, url, ca, admin)
            yield Running(url, port, api, server, admin)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await runner.cleanup()
    finally:
        await store.close()


async def run(settings: Settings) -> None:
    """Serves until SIGTERM or SIGINT."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    async with serve(settings) as running:
        print(f"onward API server at {running.url}; export KUBECONFIG={settings.state / 'kubeconfig'}", flush=True)
        await ended.wait()
