"""NVIDIA with NCCL: texts of failing memory, links and communicators.

Out of memory, a failed device-side assertion and NCCL's "invalid usage" are errors of the program, however loudly NCCL
reports them, so they are not here. Of the kernel's Xid numbers, those that stand for the program's own faults (13, 31,
43, 45) and those after which the device is gone (79, 119, 120) are left out too: a retry cures neither.
"""

from __future__ import annotations

from onward.devices.base import Vendor, communication, memory

# "NVRM: Xid (PCI:0000:3b:00): 48, pid=1234, ..." in the kernel log, "Xid 48" where people quote it.
_XID = r"\bxid\b(?: \([^)\n]{0,40}\))?[:= ]{1,3}"

VENDOR = Vendor(
    name="cuda",
    visible_devices_env="CUDA_VISIBLE_DEVICES",
    device_files="nvidia[0-9]*",
    error_patterns=(
        memory(r"uncorrectable ECC error", "CUDA: an uncorrectable ECC error"),
        memory(r"ECC_?Uncorrectable", "CUDA: an uncorrectable ECC error"),
        memory(r"double bit ECC error", "CUDA: a double bit ECC error"),
        memory(_XID + r"(?:48|63|64|92|94|95|140)\b", "the driver reported a memory (ECC) error by Xid"),
        communication(_XID + r"74\b", "the driver reported an NVLink error by Xid"),
        communication(r"uncorrectable NVLink error", "CUDA: an NVLink error"),
        communication(r"\bncclRemoteError\b", "NCCL: a remote rank or the network failed"),
        communication(r"remote process exited or there was a network error", "NCCL: remote rank or network"),
        communication(r"\bncclSystemError\b", "NCCL: a system or network call failed"),
        communication(r"\bNCCL\b[^\n]{0,300}unhandled system error", "NCCL: a system or network call failed"),
        communication(r"\bNCCL\b[^\n]{0,200}\bnetwork error", "NCCL: a network error"),
        communication(r"\bNET/(?:IB|OFI|Socket)\b[^\n]{0,300}\berror\b", "NCCL: the network failed"),
        communication(r"NCCL communicator (?:was|has been) aborted", "NCCL: the communicator was aborted"),
        communication(r"watchdog caught collective operation timeout", "NCCL: a collective timed out"),
        communication(r"\bNCCL watchdog timeout", "NCCL: a collective timed out"),
        communication(r"NCCL operations have failed or timed out", "NCCL: a collective failed or timed out"),
    ),
)
