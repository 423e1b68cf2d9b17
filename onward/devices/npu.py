"""Ascend with HCCL: the texts by which MindIO and torch_npu report memory and link faults, and the codes behind them.

FORCE STOP is what a blocked call raises when the device is stopped so that others can be repaired: the rank is sound.
The codes are looked for only next to a word such as "code": a number alone could be anything of the user's.
"""

from __future__ import annotations

from onward.devices.base import Vendor, communication, memory

_CODE = r"(?:code|\bret)\b\W{0,4}(?:is\b\W{0,4})?"  # "error code is ...", "retCode=...", "ret[...]"

VENDOR = Vendor(
    name="npu",
    visible_devices_env="ASCEND_RT_VISIBLE_DEVICES",
    device_files="davinci[0-9]*",
    error_patterns=(
        memory(r"\bUCE ERROR", "NPU: an uncorrectable memory error (UCE)"),
        memory(r"HBM MULTI[- ]BIT ECC", "NPU: a multi-bit ECC error in device memory"),
        memory(r"HBM_MULTI_BIT_ECC_ERROR|DEVICE_MEM_ERROR", "NPU: a device memory error"),
        memory(_CODE + r"(?:507053|507054|507055)\b", "NPU: a device memory error, by its runtime code"),
        communication(r"\bFORCE STOP", "NPU: the device was stopped for a recovery"),
        communication(r"HCCL OP RETRY FAILED", "HCCL: the operator could not be redone by itself"),
        communication(r"SUSPECT[ _]REMOTE[ _]ERROR", "HCCL: a remote rank is suspected"),
        communication(r"\b(?:UB|HCCS) LINK ERROR", "NPU: a link between devices failed"),
        communication(_CODE + r"(?:507056|507057|507904)\b", "NPU: a link error, by its runtime code"),
    ),
)
