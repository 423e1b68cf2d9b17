"""What `anything.py` is made of: its network, its samples, and a run without onward."""

import contextlib
import random

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset, default_collate


class Plainly:
    """What the script needs of a run, without faults in mind."""

    def __init__(self):
        dist.init_process_group("gloo")
        self.rank, self.world_size, self.device = dist.get_rank(), dist.get_world_size(), torch.device("cpu")

    def protect(self, **objects):
        pass

    def steps(self, n):
        for index in range(n):
            yield Step(index)

    def batches(self, source, global_batch=0):
        epoch = 0
        while True:
            if global_batch:  # as onward deals the samples of a data set
                order = torch.randperm(len(source), generator=torch.Generator().manual_seed(epoch)).tolist()
                per_rank = global_batch // self.world_size
                for first in range(self.rank * per_rank, len(source), global_batch):
                    yield default_collate([source[i] for i in order[first : first + per_rank]])
            else:
                source.sampler.set_epoch(epoch)
                yield from source
            epoch += 1

    def section(self, name):
        return contextlib.nullcontext()


class Step(contextlib.nullcontext):
    committed = True

    def __init__(self, index):
        super().__init__()
        self.index = index


class Samples(Dataset):
    """Some of what it gives is drawn anew each time."""

    def __len__(self):
        return 96

    def __getitem__(self, i):
        x = torch.randn(16, generator=torch.Generator().manual_seed(i))
        noise = 0.01 * torch.randn(16) + 0.01 * random.random() + 0.01 * float(np.random.rand())
        return i, x + noise


class Network(nn.Module):
    """Of one kind; `mine` is where it keeps what it carries from step to step on this rank."""

    def __init__(self, kind, growing, mine):
        super().__init__()
        self.kind, self.growing, self._mine = kind, growing, mine
        self.first, self.last = nn.Linear(16, 24), nn.Linear(24, 1)
        self.drop = nn.Dropout(0.2)
        if self.kind == "norm":
            self.middle = nn.Sequential(nn.Unflatten(1, (2, 12)), nn.Conv1d(2, 4, 3, padding=1), nn.BatchNorm1d(4))
            self.back = nn.Sequential(nn.Flatten(), nn.Linear(48, 24))
            self.register_buffer("bank", torch.zeros(1, 24))
            self.register_buffer("lazily", None)
        elif self.kind == "memory":
            self.cell = nn.LSTM(24, 24)
        elif self.kind == "attention":
            self.layer = nn.TransformerEncoderLayer(24, 2, 32, dropout=0.1, batch_first=True)
            self.out = nn.Linear(24, 24, bias=False)
            self.out.weight = self.layer.self_attn.out_proj.weight
        elif self.kind == "sparse":
            self.words = nn.Embedding(50, 24, sparse=True)
        elif self.kind == "unused":
            self.sides = nn.ModuleList(nn.Linear(24, 24) for _ in range(3))
        elif self.kind == "frozen":
            self.body = nn.Linear(24, 24).requires_grad_(False)
            self.low = nn.Sequential(nn.Linear(24, 2, bias=False), nn.Linear(2, 24, bias=False))

    def forward(self, x, index):
        h = self.drop(F.relu(self.first(x)))
        if self.kind == "norm":
            h = self.back(self.middle(h))
            if self.training and self.growing:  # grows, and is there only from the first use on
                self.bank = torch.cat([self.bank, h.detach()[:1]])[-6:]
                now = h.detach().mean(0)
                self.lazily = now if self.lazily is None else 0.9 * self.lazily + 0.1 * now
                h = h + 0.1 * self.bank.mean(0) + 0.1 * self.lazily
        elif self.kind == "memory":
            before = self._mine.get("hidden")
            h, after = self.cell(h.unsqueeze(0), before and tuple(before))
            h = h.squeeze(0)
            self._mine["hidden"] = [t.detach() for t in after]
        elif self.kind == "attention":
            h = checkpoint(self.layer, h.unsqueeze(1), use_reentrant=False).squeeze(1)
            h = self.out(h)
        elif self.kind == "sparse":
            h = h + self.words((x.abs() * 10).long().clamp_max(49)).mean(1)
        elif self.kind == "unused":
            h = self.sides[index % 3](h)
        elif self.kind == "frozen":
            h = self.body(h) + self.low(h)
        return self.last(h)
