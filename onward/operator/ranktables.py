"""The rank table of a job, kept up to date for those who ask for one: a file on a shared directory, or a ConfigMap.

The ConfigMap is the user's: it is filled when it is there, never made. See `api.ranktable` for what stands in it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from onward.api import pods, ranktable
from onward.api.job import Job
from onward.core.jobs import OVER
from onward.kube.client import ApiError, Client
from onward.kube.objects import CONFIGMAPS
from onward.operator.eyes import Memory, Sight
from onward.operator.hands import guarded

AGAIN_S = 10.0  # a shared directory may be back by then


class RankTables:
    """`say` hears what could not be written."""

    def __init__(self, client: Client, root: str, leads: Callable[[], bool], say: Callable[[Sight, str], None]) -> None:
        self._client, self._root, self._leads, self._say = client, Path(root), leads, say

    async def keep(self, sight: Sight, memory: Memory, at: float) -> float | None:
        """After how long to try again; None: it is as it should be."""
        job = sight.read
        if not isinstance(job, Job) or not sight.pods:
            return None
        text = ranktable.rank_table(job, sight.pods.values())
        if text is None or text == memory.table:
            return None
        data = {ranktable.FILE: text, ranktable.VERSION_FILE: str(int(at))}
        await self._fill_config_map(job, data)
        if ranktable.wants_file(job):
            try:
                await asyncio.to_thread(self._write_files, job, data)
            except OSError as e:
                self._say(sight, f"the rank table cannot be written to {e.filename}: {e.strerror}")
                over = sight.seen.word is not None and sight.seen.word.type in OVER
                return None if over else AGAIN_S
        memory.table = text
        return None

    async def _fill_config_map(self, job: Job, data: dict[str, str]) -> None:
        async def write() -> dict[str, object]:
            return await self._client.patch(CONFIGMAPS, pods.config_map_name(job), {"data": data}, job.namespace)

        try:
            await guarded(self._leads, write)
        except ApiError as e:
            if e.code != 404:  # nobody asked for it
                raise

    def _write_files(self, job: Job, data: dict[str, str]) -> None:
        place = self._root / Path(ranktable.directory(job)).name
        place.mkdir(parents=True, exist_ok=True)
        for name, text in data.items():
            new = place / f".{name}.new"
            new.write_text(text)
            os.chmod(new, 0o644)
            new.rename(place / name)
