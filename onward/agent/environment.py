"""The environment of a rank: what torchrun sets, so that a torchrun script runs unchanged."""

from __future__ import annotations

import os
from dataclasses import dataclass

from onward.agent.settings import RunSettings


@dataclass(frozen=True)
class Post:
    """Where in the job this node stands."""

    node: int
    nodes: int
    master_addr: str
    master_port: int


def rank_environment(s: RunSettings, post: Post, rank: int, attempt: int, restarts: int) -> dict[str, str]:
    world = s.nproc * post.nodes
    local = rank - post.node * s.nproc
    env = dict(os.environ)
    env.update(
        RANK=str(rank),
        LOCAL_RANK=str(local),
        GROUP_RANK=str(post.node),
        ROLE_RANK=str(rank),
        ROLE_NAME=s.role,
        WORLD_SIZE=str(world),
        LOCAL_WORLD_SIZE=str(s.nproc),
        GROUP_WORLD_SIZE=str(post.nodes),
        ROLE_WORLD_SIZE=str(world),
        MASTER_ADDR=post.master_addr,
        MASTER_PORT=str(post.master_port),
        TORCHELASTIC_RESTART_COUNT=str(attempt),
        TORCHELASTIC_MAX_RESTARTS=str(s.max_restarts),
        TORCHELASTIC_RUN_ID=s.rdzv_id,
        TORCHELASTIC_USE_AGENT_STORE="False",
        TORCHELASTIC_SIGNALS_TO_HANDLE=",".join(s.signals),
        ONWARD_INCARNATION=str(restarts + 1),
    )
    env.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    if s.nproc > 1:
        env.setdefault("OMP_NUM_THREADS", "1")
    if s.virtual_local_rank:
        visible = env.get("CUDA_VISIBLE_DEVICES", "")
        devices = visible.split(",") if visible else [str(i) for i in range(s.nproc)]
        env["CUDA_VISIBLE_DEVICES"] = devices[local % len(devices)]
        env["LOCAL_RANK"] = "0"
    return env
