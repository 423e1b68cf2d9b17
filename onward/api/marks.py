"""Labels and annotations of a job: what each of them asks for, and what it does here.

A wrong value is a problem, since a policy that is silently off is only missed on the day it is needed. A key that the
original understands and we have no use for is a note: one sentence for an event.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from onward.api.job import Note, Problem, Recovery
from onward.core.policy import Policy, did_you_mean, parse_policies
from onward.errors import UsageError

RECOVER_STRATEGY = "recover-strategy"
WAIT_RESCHEDULE = "wait-reschedule-timeout"
FAULT_SCHEDULING = "fault-scheduling"
FAULT_RETRY_TIMES = "fault-retry-times"
POD_RESCHEDULING = "pod-rescheduling"
SUB_HEALTHY = "subHealthyStrategy"
PROCESS_RECOVER = "process-recover-enable"
FRAMEWORK = "framework"
FILTER_CODE = "huawei.com/schedule.filter.faultCode"
FILTER_LEVEL = "huawei.com/schedule.filter.faultLevel"
RECOVER_PATH = "huawei.com/recover_policy_path"
SCHEDULE_MIN = "huawei.com/schedule_minAvailable"
TOR_AFFINITY = "tor-affinity"
PLATFORM = ("ProcessRecoverStrategy", "ProcessConfirmFault", "ProcessResultFault", "RankTableReady")
SUPER_POD = ("sp-block", "sp-fit", "ra-block", "super-pod-affinity")

SILENCE_S = 60  # of a fault code that is listed without a time
LONGEST_SILENCE_S = 86400
WAIT_S = (30, 270)
SUB_HEALTHY_VALUES = ("ignore", "graceExit", "forceExit", "hotSwitch")
FAULT_SCHEDULING_VALUES = ("grace", "force", "off")
EXTERNAL = ("external-grace", "external-force")

ON_POD_GROUP = "it is copied to the PodGroup, where Volcano's Ascend plugin reads it"
OWN_PLACEMENT = "onward's own scheduler counts devices and does not look at how they are wired"
IGNORED_LABELS: Mapping[str, str] = {
    "ring-controller.atlas": "it stays on the pods; which accelerator a job uses is taken from the resources that its "
    "containers ask for",
    "elastic-scheduling": "the older way of shrinking is not here; the policy elastic-training in the annotation "
    "recover-strategy does it",
    "custom-job-id": "it stays on the job and its pods, as any label",
    "customJobKey": "it stays on the job and its pods, as any label",
    "mind-cluster/scaling-rule": "replicas are not scaled by a rule here; change spec.replicaSpecs instead",
    "scaleout-type": f"{ON_POD_GROUP}; onward has no use for it",
}
IGNORED_ANNOTATIONS: Mapping[str, str] = {
    "huawei.com/schedule_policy": f"{ON_POD_GROUP}; {OWN_PLACEMENT}",
    "huawei.com/affinity-config": f"{ON_POD_GROUP}; {OWN_PLACEMENT}",
    "huawei.com/schedule_enable_dequeue": "a gang that waits holds nothing here, so there is nothing to give back",
    FILTER_LEVEL: "faults are silenced by code here, not by level; write huawei.com/schedule.filter.faultCode",
}


def texts(given: object) -> dict[str, str]:
    """Labels or annotations, with numbers and truth values as text: people forget the quotes."""
    if not isinstance(given, Mapping):
        return {}
    return {str(key): _text(value) for key, value in given.items() if value is not None}


def not_one_of(value: object, known: Iterable[str]) -> str:
    """`'forse' is not one of grace, force, off; did you mean 'force'?`"""
    listed = tuple(known)
    return f"{value!r} is not one of {', '.join(listed)}{did_you_mean(str(value), listed)}"


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


class Marks:
    """Reads the labels and annotations of one job; collects problems and notes on the way."""

    def __init__(self, labels: Mapping[str, str], annotations: Mapping[str, str]) -> None:
        self.labels, self.annotations = labels, annotations
        self.problems: list[Problem] = []
        self.notes: list[Note] = []

    def recovery(self) -> Recovery:
        found = Recovery(
            strategies=self._strategies(),
            fault_scheduling=self._fault_scheduling(),
            pod_rescheduling=self._pod_rescheduling(),
            pod_only=self._pod_only(),
            fault_retry_times=self._whole("labels", FAULT_RETRY_TIMES, "InvalidFaultRetryTimes", 0, 0),
            sub_healthy=self._choice(SUB_HEALTHY, "InvalidSubHealthyStrategy", SUB_HEALTHY_VALUES, "ignore"),
            wait_reschedule_s=self._wait(),
            silenced=self._silenced(),
        )
        value = self._choice(PROCESS_RECOVER, "InvalidProcessRecoverEnable", ("on", "off", "pause"), "on")
        if value != "on" and found.strategies:
            self._note(f"{PROCESS_RECOVER} is {value!r}, so the policies of {RECOVER_STRATEGY} rest")
            found = replace(found, strategies=())
        return found

    def check(self) -> None:
        """What is about the job as a whole: groups for scaling, and keys that do something else here."""
        missing = [key for key in ("mind-cluster/group-name", "jobID") if key not in self.labels]
        if "mind-cluster/scaling-rule" in self.labels and missing:
            verb = "which is" if len(missing) == 1 else "which are"
            what = f"mind-cluster/scaling-rule needs the label {' and '.join(missing)}, {verb} not set"
            self._problem("InvalidScalingConfig", what, "labels", "mind-cluster/scaling-rule")
        kind = self.labels.get("scaleout-type", "").strip()
        if kind and kind.upper() not in ("ROCE", "UBOE"):
            what = f"label scaleout-type {not_one_of(kind, ('ROCE', 'UBOE'))}"
            self._problem("InvalidScaleOutConfig", what, "labels", "scaleout-type")
        self._ignored()

    def min_available(self) -> int | None:
        """The scheduler-side minimum, which counts where the spec has none."""
        if SCHEDULE_MIN not in self.annotations:
            return None
        return self._whole("annotations", SCHEDULE_MIN, "InvalidMinAvailable", 1, 1)

    def _ignored(self) -> None:
        for given, ignored in ((self.labels, IGNORED_LABELS), (self.annotations, IGNORED_ANNOTATIONS)):
            for key in ignored:
                if given.get(key, "").strip():
                    self._note(f"{key}: {ignored[key]}")
        tor = self.labels.get(TOR_AFFINITY, "null").strip() or "null"
        if tor != "null":
            self._note(f"{TOR_AFFINITY}: {ON_POD_GROUP}; {OWN_PLACEMENT}")
        together = {**self.labels, **self.annotations}
        geometry = [key for key in SUPER_POD if key in together]
        if geometry:
            self._note(f"{', '.join(geometry)}: {ON_POD_GROUP}; {OWN_PLACEMENT}")
        asked = [key for key in PLATFORM if key in self.annotations]
        if asked:
            self._note(f"{', '.join(asked)}: no platform is asked here; the policies of the job decide")

    def _strategies(self) -> tuple[Policy, ...]:
        text = self.annotations.get(RECOVER_STRATEGY, "")
        if not text.strip():
            return ()
        try:
            return parse_policies(text)
        except UsageError as e:
            for what in e.problems:
                self._problem("InvalidRecoverStrategy", what, "annotations", RECOVER_STRATEGY)
            return ()

    def _fault_scheduling(self) -> str:
        value = self.labels.get(FAULT_SCHEDULING, "").strip()
        if value in EXTERNAL:
            self._note(
                f"{FAULT_SCHEDULING} is {value}: pods are left to somebody else, so onward replaces none (as with off)",
            )
            return "off"
        if not value:
            return ""
        return self._choice(FAULT_SCHEDULING, "InvalidFaultScheduling", FAULT_SCHEDULING_VALUES, "off")

    def _pod_rescheduling(self) -> bool:
        return self._choice(POD_RESCHEDULING, "InvalidPodRescheduling", ("on", "off"), "off") == "on"

    def _wait(self) -> int:
        seconds = self._whole("annotations", WAIT_RESCHEDULE, "InvalidWaitRescheduleTimeout", 1, WAIT_S[1])
        if not WAIT_S[0] <= seconds <= WAIT_S[1]:
            self._note(
                f"{WAIT_RESCHEDULE} is {seconds}: taken as it is, though MindCluster allows {WAIT_S[0]} to {WAIT_S[1]}",
            )
        return seconds

    def _silenced(self) -> tuple[tuple[str, int], ...]:
        """`code:seconds,...`; without a time a minute."""
        found = []
        for part in filter(None, (p.strip() for p in self.annotations.get(FILTER_CODE, "").split(","))):
            code, _, seconds = (word.strip() for word in part.partition(":"))
            if not code or (seconds and not (seconds.isdecimal() and int(seconds) <= LONGEST_SILENCE_S)):
                what = f"annotation {FILTER_CODE}: {part!r} is not CODE:SECONDS, with 0 to {LONGEST_SILENCE_S} seconds"
                self._problem("InvalidFaultFilter", what, "annotations", FILTER_CODE)
            else:
                found.append((code, int(seconds) if seconds else SILENCE_S))
        return tuple(found)

    def _pod_only(self) -> bool:
        value = self.annotations.get(RECOVER_PATH, "").strip()
        if value not in ("", "pod"):
            what = f"annotation {RECOVER_PATH} {not_one_of(value, ('pod',))}"
            self._problem("InvalidRecoverPolicyPath", what, "annotations", RECOVER_PATH)
        return value == "pod"

    def _choice(self, key: str, reason: str, values: Iterable[str], default: str) -> str:
        known = tuple(values)
        value = self.labels.get(key, "").strip() or default
        meant = {"true": "on", "false": "off"}.get(value, value)  # what YAML makes of on and off without quotes
        if meant in known:
            return meant
        self._problem(reason, f"label {key} {not_one_of(value, known)}", "labels", key)
        return default

    def _whole(self, where: str, key: str, reason: str, least: int, default: int) -> int:
        given = self.labels if where == "labels" else self.annotations
        text = given.get(key, "").strip()
        if not text:
            return default
        if re.fullmatch(r"[0-9]{1,9}", text) and int(text) >= least:
            return int(text)
        what = f"{where[:-1]} {key} is {text!r}, but must be a whole number, {least} or more"
        self._problem(reason, what, where, key)
        return default

    def _problem(self, reason: str, message: str, *path: str) -> None:
        self.problems.append(Problem(reason, message, ("metadata", *path)))

    def _note(self, message: str) -> None:
        self.notes.append(Note("Accepted", message))
