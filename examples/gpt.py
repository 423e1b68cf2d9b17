"""A small character-level GPT, trained with DDP on text that is made offline (or on your own, with --text FILE).

    onward run --nproc_per_node 4 examples/gpt.py --steps 200
"""

import argparse
import math
import random
from array import array
from pathlib import Path

import torch
from text import make_text
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import Dataset

import onward

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--layers", type=int, default=3)
parser.add_argument("--heads", type=int, default=4)
parser.add_argument("--embd", type=int, default=96, help="width of the residual stream")
parser.add_argument("--block", type=int, default=64, help="characters of context")
parser.add_argument("--batch", type=int, default=32, help="sequences in a step, over all ranks together")
parser.add_argument("--dropout", type=float, default=0.1)
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--lr", type=float, default=3e-3)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--text", type=Path, metavar="FILE", help="train on this text")
parser.add_argument("--digest", metavar="FILE", help="write the final state of rank r to FILE.r.pt")
args = parser.parse_args()
if args.embd % args.heads:
    parser.error(f"--embd {args.embd} is not a multiple of --heads {args.heads}")


class Windows(Dataset):
    """Every stretch of `block` characters, with the same stretch one character later as its target."""

    def __init__(self, text, block):
        self.alphabet = sorted(set(text))
        code = {char: number for number, char in enumerate(self.alphabet)}
        self.codes = torch.tensor([code[char] for char in text])
        self.block = block

    def __len__(self):
        return max(0, len(self.codes) - self.block)

    def __getitem__(self, i):
        window = self.codes[i : i + self.block + 1]
        return i, window[:-1], window[1:]


class Layer(nn.Module):
    def __init__(self, embd, heads, dropout):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(embd), nn.LayerNorm(embd)
        self.qkv, self.out = nn.Linear(embd, 3 * embd), nn.Linear(embd, embd)
        self.mlp = nn.Sequential(nn.Linear(embd, 4 * embd), nn.GELU(), nn.Linear(4 * embd, embd))
        self.drop = nn.Dropout(dropout)

    def attend(self, x):
        batch, length, embd = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, embd // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, embd))

    def forward(self, x):
        x = x + self.drop(self.attend(self.norm1(x)))
        return x + self.drop(self.mlp(self.norm2(x)))


class GPT(nn.Module):
    def __init__(self, vocabulary, layers, heads, embd, block, dropout):
        super().__init__()
        self.token, self.place = nn.Embedding(vocabulary, embd), nn.Embedding(block, embd)
        self.drop = nn.Dropout(dropout)
        self.layers = nn.Sequential(*(Layer(embd, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(embd)
        self.head = nn.Linear(embd, vocabulary, bias=False)

    def forward(self, x, y):
        hidden = self.token(x) + self.place(torch.arange(x.shape[1], device=x.device))
        logits = self.head(self.norm(self.layers(self.drop(hidden))))
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())


def warm_then_cosine(step):
    return min((step + 1) / 20, 0.55 + 0.45 * math.cos(math.pi * min(step / args.steps, 1)))


class SampleIds:
    """Which samples this rank has trained on; kept as protected state, so that a redo does not count one twice."""

    def __init__(self):
        self.seen = array("q")

    def state_dict(self):
        return {"seen": self.seen.tobytes()}  # bytes: cheap to keep at every step, however long it gets

    def load_state_dict(self, state):
        self.seen = array("q", state["seen"])


def train(model, optimizer, scheduler, x, y):
    loss = model(x, y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    return loss


run = onward.init()
rank, device = run.rank, run.device

text = args.text.read_text(encoding="utf-8") if args.text else make_text(200_000, args.seed)
dataset = Windows(text, args.block)
if len(dataset) < args.batch:
    parser.error(f"a text of {len(text)} characters is too short for one batch; need {args.block + args.batch}")

torch.manual_seed(args.seed)
model = GPT(len(dataset.alphabet), args.layers, args.heads, args.embd, args.block, args.dropout).to(device)
model = DDP(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warm_then_cosine)
torch.manual_seed(args.seed + 1 + rank)  # dropout differs from rank to rank
random.seed(args.seed + 1 + rank)
if rank == 0:
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(dataset):,} windows", flush=True)

ids = SampleIds()
run.protect(model=model, optimizer=optimizer, scheduler=scheduler, local={"ids": ids})
batches = run.batches(dataset, global_batch=args.batch, seed=args.seed)

for step in run.steps(args.steps):
    with step:
        for i, x, y in batches:
            ids.seen.extend(i.tolist())
            loss = train(model, optimizer, scheduler, x.to(device), y.to(device))
    if step.committed:
        run.log(loss=loss.item())
    if step.committed and rank == 0 and (step.index + 1) % 10 == 0:
        print(f"step {step.index + 1} loss {loss.item():.4f}", flush=True)

if args.digest:
    state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "sample_ids": ids.seen.tolist()}
    state |= {"rng_torch": torch.get_rng_state(), "rng_python": random.getstate()}
    torch.save(state, f"{args.digest}.{rank}.pt")
