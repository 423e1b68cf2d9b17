"""A GAN: two networks, two optimizers, and a pool of earlier fakes that only this rank has."""

import random

import torch
import torch.distributed as dist
from digest_out import arguments, seed, write
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

args = arguments(__doc__)
dist.init_process_group("gloo")
rank = dist.get_rank()

torch.manual_seed(0)
generator = DDP(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2)))
critic = DDP(nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1)))
generator_opt = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
critic_opt = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))
pool = torch.zeros(8, 16, 2)
seed(rank)


def play(generator, critic, generator_opt, critic_opt, pool):
    critic.requires_grad_(True)
    angle = torch.rand(16) * 6.2832
    real = torch.stack([angle.cos(), angle.sin()], dim=1)
    fake = generator.module(torch.randn(16, 8)).detach()
    old = pool[random.randrange(len(pool))]
    scores = critic(torch.cat([real, fake, old]))
    truth = torch.cat([torch.ones(16, 1), torch.zeros(32, 1)])
    critic_loss = F.binary_cross_entropy_with_logits(scores, truth)
    critic_loss.backward()
    critic_opt.step()
    critic_opt.zero_grad()

    # From here on the critic has been stepped in this step already, and noise is still drawn.
    critic.requires_grad_(False)
    generator_loss = -critic.module(generator(torch.randn(16, 8))).mean()
    generator_loss.backward()
    generator_opt.step()
    generator_opt.zero_grad()
    with torch.no_grad():
        pool[random.randrange(len(pool))] = generator.module(torch.randn(16, 8))
    return critic_loss, generator_loss


for step in range(args.steps):
    critic_loss, generator_loss = play(generator, critic, generator_opt, critic_opt, pool)
    if rank == 0 and (step + 1) % 5 == 0:
        losses = f"critic {critic_loss.item():.4f} generator {generator_loss.item():.4f}"
        print(f"step {step + 1} {losses}", flush=True)

models = {"generator": generator.module.state_dict(), "critic": critic.module.state_dict()}
optimizers = {"generator": generator_opt.state_dict(), "critic": critic_opt.state_dict()}
write(args.digest, rank, models, optimizers, pool=pool)
dist.destroy_process_group()
