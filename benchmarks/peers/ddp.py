"""A worker of PyTorch's DistributedDataParallel on gloo.

Usage: ddp.py MODEL FOLDER, with the variables of `torchrun`.
"""

import sys

import torch
from torch import distributed
from torch.nn import parallel

from benchmarks import orders
from benchmarks.peers import torch_models


def main(name: str, folder: str) -> None:
  distributed.init_process_group('gloo')
  rank = distributed.get_rank()
  torch.manual_seed(1)
  model = parallel.DistributedDataParallel(torch_models.model(name))
  optimizer = torch_models.optimizer(name, model.parameters())
  loss_fn, batches = torch_models.loss(name), torch_models.batches(name, rank)
  for num_steps in orders.numbers_of_steps(folder, f'worker:{rank}'):
    for _ in range(num_steps):
      x, y = next(batches)
      optimizer.zero_grad()
      loss_fn(model(x), y).backward()
      optimizer.step()


if __name__ == '__main__':
  main(*sys.argv[1:])
