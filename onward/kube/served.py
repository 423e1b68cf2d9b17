"""Kinds that a cluster may not have: they are looked for, again and again, and watched while they are served.

Nothing is installed. Somebody else may bring such a kind, and take it away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from onward.kube.client import ApiError, Client, Unreachable
from onward.kube.informer import Informer
from onward.log import get_logger

log = get_logger("kube.served")

PROBE_S = 15.0  # between two questions whether a kind is served


class WhileServed:
    """Runs an informer while its kind is served. `changed` is called when that is otherwise than it was.

    `may_be_forbidden`: what we are not allowed to read counts as not served.
    """

    def __init__(
        self, client: Client, informer: Informer, changed: Callable[[], None], *, may_be_forbidden: bool = False
    ) -> None:
        self._client, self._informer, self._changed = client, informer, changed
        self._no = (403, 404) if may_be_forbidden else (404,)
        self._said: bool | None = None

    @property
    def served(self) -> bool:
        """By the last answer."""
        return self._said is True

    async def ask(self) -> bool:
        """Whether it is served now."""
        try:
            await self._client.request("GET", self._informer.resource.path(), params={"limit": "1"})
            found = True
        except ApiError as e:
            if e.code not in self._no:
                raise
            found = False
        if found != self._said:
            log.info("%s are %sserved here", self._informer.resource.plural, "" if found else "not ")
            self._said = found
            self._changed()
        return found

    async def synced(self, timeout_s: float) -> None:
        """What there is of it is known, or that there is none."""
        if await self.ask():
            await self._informer.synced(timeout_s)

    async def run(self) -> None:
        """For ever; ends when cancelled."""
        watching: asyncio.Task[None] | None = None
        try:
            while True:
                try:
                    found = await self.ask()
                except (ApiError, Unreachable) as e:
                    log.info("%s: %s", self._informer.resource.plural, e)
                else:
                    if found and watching is None:
                        watching = asyncio.ensure_future(self._informer.run())
                    elif not found and watching is not None:
                        watching.cancel()
                        watching = None
                await asyncio.sleep(PROBE_S)
        finally:
            if watching is not None:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
