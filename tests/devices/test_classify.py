"""Which exceptions a retry cures. The texts are real ones, as torch, NCCL, the driver and torch_npu print them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.devices import ALL, classify_error, count_devices, cpu, cuda, npu
from onward.errors import UsageError

# torch appends this to every CUDA error; its last line must not be taken for a failed assertion.
CUDA_TAIL = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be"
    " incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable"
    " device-side assertions.\n"
)
GLOO = "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/"
NCCL = "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:268, "
WATCHDOG = "[PG ID 0 PG GUID 0(default_pg) Rank 3] Process group watchdog thread terminated with exception: "
NPU = "operator():build/CMakeFiles/torch_npu.dir/compiler_depend.ts:25 NPU function error: "

COMMUNICATION = [
    ("RuntimeError", GLOO + "pair.cc:553] Connection closed by peer [127.0.0.1]:8077. This is typically caused by a"),
    ("RuntimeError", GLOO + "pair.cc:589] Read error [192.168.70.92]:25266: Connection reset by peer"),
    ("RuntimeError", GLOO + "pair.cc:534] Write error [10.0.0.1]:4711: Broken pipe"),
    ("RuntimeError", GLOO + "unbound_buffer.cc:78] Timed out waiting 4000ms for recv operation to complete"),
    ("RuntimeError", GLOO + "unbound_buffer.cc:129] Timed out waiting 1800000ms for send operation to complete"),
    ("RuntimeError", GLOO + "pair.cc:1] Application timeout caused pair closure"),
    ("RuntimeError", "Gloo connectFullMesh failed with " + GLOO + "pair.cc:144] no error"),
    ("RuntimeError", GLOO + "tcp/pair.cc:246] connect [127.0.0.1]:17308: Connection refused"),
    ("RuntimeError", "Socket Timeout"),
    ("DistNetworkError", "The client socket has timed out after 1000ms while trying to connect to (127.0.0.1, 29999)."),
    ("DistStoreError", "wait timeout after 1000ms, keys: /x"),
    ("DistNetworkError", "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server crash?"),
    (
        "DistBackendError",
        NCCL + "remote process exited or there was a network error, NCCL version 2.21.5\nncclRemoteError: A call failed"
        " possibly due to a network error or a remote process exiting prematurely.\nLast error:\nsocketProgressOpt:",
    ),
    ("DistBackendError", NCCL + "unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5"),
    (
        "DistBackendError",
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device",
    ),
    ("RuntimeError", "NET/IB : Got completion from peer 11.214.147.122<39138> with error 12, opcode 0, len 0"),
    ("DistBackendError", "NCCL communicator was aborted on rank 1.  Original reason for failure was: ..."),
    (
        "DistBackendError",
        WATCHDOG + "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=BROADCAST,"
        " Timeout(ms)=1800000) ran for 1800011 milliseconds before timing out.",
    ),
    ("RuntimeError", "Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels,"),
    ("AcceleratorError", "CUDA error: uncorrectable NVLink error detected during the execution" + CUDA_TAIL),
    ("RuntimeError", "NVRM: Xid (PCI:0000:3b:00): 74, pid=1234, NVLink: fatal error detected on link 3"),
    ("RuntimeError", "FORCE STOP."),
    ("RuntimeError", NPU + "HCCL OP RETRY FAILED, error code is 507904"),
    ("RuntimeError", NPU + "SUSPECT REMOTE ERROR, error code is 507057\nERR00100 PTA call acl api failed"),
    ("RuntimeError", "UB LINK ERROR"),
    ("RuntimeError", "HCCS LINK ERROR"),
    ("RuntimeError", NPU + "aclrtSynchronizeStream(stream), error code is 507057"),
    ("RuntimeError", "rtStreamSynchronize execute failed, retCode=507904"),
]

MEMORY = [
    ("AcceleratorError", "CUDA error: uncorrectable ECC error encountered" + CUDA_TAIL),
    ("RuntimeError", "CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error encountered"),
    ("AcceleratorError", "cudaErrorECCUncorrectable"),
    # The communicator dies of the ECC error and says so; the memory is what has to be repaired.
    ("DistBackendError", WATCHDOG + "CUDA error: uncorrectable ECC error encountered" + CUDA_TAIL),
    ("RuntimeError", "NCCL communicator was aborted on rank 1. Original reason: uncorrectable ECC error encountered"),
    ("RuntimeError", "NVRM: Xid (PCI:0000:3b:00): 48, pid=1234, An uncorrectable double bit error (DBE)"),
    ("RuntimeError", "NVRM: Xid (PCI:0000:8a:00): 94, pid='<unknown>', name=<unknown>, Contained ECC error."),
    ("RuntimeError", "Xid 95"),
    ("RuntimeError", "UCE ERROR."),
    ("RuntimeError", NPU + "HBM MULTI BIT ECC ERROR, error code is 507054"),
    ("RuntimeError", NPU + "aclrtSynchronizeStreamWithTimeout(copy_stream), error code is 507053"),
    ("RuntimeError", "ACL_ERROR_RT_SUSPECT_DEVICE_MEM_ERROR"),
]

USER = [
    ("ValueError", "optimizer got an empty parameter list"),
    ("KeyError", "'loss'"),
    ("", ""),
    ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB"),
    ("RuntimeError", "[enforce fail at alloc_cpu.cpp:119] DefaultCPUAllocator: not enough memory"),
    ("MemoryError", "Connection reset by peer"),
    ("DistBackendError", NCCL + "unhandled system error\nLast error:\nCuda failure 2 'out of memory'"),
    ("AcceleratorError", "CUDA error: device-side assert triggered" + CUDA_TAIL),
    ("DistBackendError", WATCHDOG + "CUDA error: device-side assert triggered" + CUDA_TAIL),
    ("AcceleratorError", "CUDA error: an illegal memory access was encountered" + CUDA_TAIL),
    (
        "DistBackendError",
        NCCL + "invalid usage\nncclInvalidUsage: This usually reflects invalid usage of NCCL library.",
    ),
    ("RuntimeError", "NVRM: Xid (PCI:0000:3b:00): 31, pid=1234, MMU Fault: ENGINE GRAPHICS"),
    ("RuntimeError", "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus."),
    ("ConnectionRefusedError", "[Errno 111] Connection refused"),  # the user's own database
    ("ValueError", "sample 507053 has no label"),
    ("RuntimeError", NPU + "aclrtSynchronizeStream(stream), error code is 507011"),
    ("RuntimeError", "reduced to 1 rank; success error"),
]


@pytest.mark.parametrize(("exc_type", "text"), COMMUNICATION)
def test_communication_errors_need_only_a_redone_step(exc_type: str, text: str) -> None:
    found = classify_error(exc_type, text)
    assert found is not None
    assert found.kind == "communication"


@pytest.mark.parametrize(("exc_type", "text"), MEMORY)
def test_memory_errors_need_repair_from_a_replica(exc_type: str, text: str) -> None:
    found = classify_error(exc_type, text)
    assert found is not None
    assert found.kind == "memory"


@pytest.mark.parametrize(("exc_type", "text"), USER)
def test_errors_of_the_program_are_not_retried(exc_type: str, text: str) -> None:
    assert classify_error(exc_type, text) is None


def test_every_pattern_is_needed_by_some_text() -> None:
    texts = [f"{exc_type}: {text}" for exc_type, text in COMMUNICATION + MEMORY]
    for vendor in ALL:
        for pattern in vendor.error_patterns:
            if not any(re.search(pattern.pattern, text, re.IGNORECASE) for text in texts):
                assert pattern.pattern in UNSEEN, pattern


# Kept for older versions of NCCL and of the driver, of which no whole text is at hand.
UNSEEN = {r"double bit ECC error", r"\bNCCL watchdog timeout"}


def test_user_patterns_are_communication_and_overrule_the_refusal() -> None:
    found = classify_error("OSError", "Lustre went away, CODE 7", ["nope", r"lustre .* code \d"])
    assert found is not None
    assert (found.kind, found.why) == ("communication", "registered by the user")
    assert classify_error("OutOfMemoryError", "CUDA out of memory", ["out of memory"]) is not None


def test_a_memory_error_stays_one_whatever_the_user_registered() -> None:
    found = classify_error("RuntimeError", "CUDA error: uncorrectable ECC error encountered", ["CUDA error"])
    assert found is not None
    assert found.kind == "memory"


def test_all_bad_user_patterns_are_named() -> None:
    with pytest.raises(UsageError) as caught:
        classify_error("RuntimeError", "x", ["(", "fine", "[a", "  ", "a{99999999999999999999}"])
    assert len(caught.value.problems) == 4
    assert "'('" in caught.value.problems[0]


@given(st.text(), st.text())
def test_any_text_is_answered(exc_type: str, text: str) -> None:
    found = classify_error(exc_type, text)
    assert found is None or found.kind in ("memory", "communication")


@pytest.mark.parametrize("filler", ["x", "gloo ", "NCCL ", "xid (", "code ", "\n", "connect [1]:1 ", "NET/IB "])
@pytest.mark.timeout(60)  # a few milliseconds; a pattern that runs wild takes for ever
def test_a_huge_text_is_classified(filler: str) -> None:
    assert classify_error("RuntimeError", filler * (10_000_000 // len(filler))) is None


def test_start_and_end_of_a_huge_text_are_read() -> None:
    huge = "x" * 1_000_000
    assert classify_error("RuntimeError", f"Connection closed by peer {huge}") is not None
    assert classify_error("RuntimeError", f"{huge} Connection closed by peer") is not None
    assert classify_error("RuntimeError", f"{huge} Connection closed by peer {huge}") is None


@pytest.mark.parametrize(
    ("visible", "count"),
    [("0", 1), ("0,1, 2", 3), ("", 0), ("-1", 0), ("0,-1,1", 1), ("NoDevFiles", 0), ("GPU-8932f937,MIG-a/1/0", 2)],
)
def test_visible_devices_are_counted_as_the_driver_does(tmp_path: Path, visible: str, count: int) -> None:
    assert count_devices(cuda.VENDOR, {"CUDA_VISIBLE_DEVICES": visible}, dev=tmp_path) == count


def test_device_files_are_counted_where_no_variable_limits(tmp_path: Path) -> None:
    for name in ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "davinci0", "davinci_manager"]:
        (tmp_path / name).touch()
    assert [count_devices(vendor, {}, dev=tmp_path) for vendor in (cpu.VENDOR, cuda.VENDOR, npu.VENDOR)] == [0, 2, 1]
