"""Jobs that can be described here and that nothing runs yet: they are told so, instead of waiting in silence."""

from __future__ import annotations

import asyncio

from onward.kube.client import Client
from onward.kube.events import EventRecorder
from onward.kube.informer import Informer
from onward.kube.objects import Obj, Resource

ELASTICJOBS = Resource("elastic.iml.github.io", "v1alpha1", "elasticjobs", "ElasticJob")
NOT_YET = "onward checks ElasticJobs and does not run them yet; AscendJobs (mindxdl.gitee.com/v1) are run"


class NotYet:
    def __init__(self, client: Client) -> None:
        self._recorder = EventRecorder(client, "onward")
        self._jobs = Informer(client, ELASTICJOBS, on_change=self._tell)

    async def run(self) -> None:
        await asyncio.gather(self._jobs.run(), self._recorder.run())

    def _tell(self, old: Obj | None, new: Obj | None) -> None:
        if old is None and new is not None:
            self._recorder.record(new, ELASTICJOBS, "Warning", "NotRunYet", NOT_YET)
