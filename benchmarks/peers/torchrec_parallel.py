"""A worker of TorchRec, which divides tables among the workers.

Usage: torchrec_parallel.py MODEL FOLDER, with the variables of `torchrun`.
"""

import sys

import torch
from torch import distributed
from torch import nn
import torchrec
from torchrec import optim
from torchrec.distributed import model_parallel
from torchrec.optim import keyed
from torchrec.optim import optimizers

from benchmarks import orders
from benchmarks import workloads
from benchmarks.peers import torch_models

_CPU = torch.device('cpu')


class Clicks(nn.Module):
  """Tables, which are made where they are to be, and their layers."""

  def __init__(self, sizes: workloads.Clicks) -> None:
    super().__init__()
    self.tables = torchrec.EmbeddingBagCollection(
      device=torch.device('meta'),
      tables=[
        torchrec.EmbeddingBagConfig(
          name=f'table_{i}',
          embedding_dim=sizes.width,
          num_embeddings=sizes.num_rows,
          feature_names=[f'id_{i}'],
        )
        for i in range(sizes.num_tables)
      ],
    )
    self.layers = torch_models.clicks_layers(sizes)

  def forward(self, ids: torchrec.KeyedJaggedTensor) -> torch.Tensor:
    return self.layers(self.tables(ids).values())


def _keyed(ids: torch.Tensor) -> torchrec.KeyedJaggedTensor:
  columns = ids.reshape(len(ids), -1)
  return torchrec.KeyedJaggedTensor(
    keys=[f'id_{i}' for i in range(columns.shape[1])],
    values=columns.T.reshape(-1),
    lengths=torch.ones(columns.numel(), dtype=torch.int32),
  )


def main(name: str, folder: str) -> None:
  sizes = torch_models.CLICKS[name]
  distributed.init_process_group('gloo')
  rank = distributed.get_rank()
  torch.manual_seed(1)
  clicks = Clicks(sizes)
  optim.apply_optimizer_in_backward(
    torch.optim.Adagrad, clicks.tables.parameters(), {'lr': sizes.rate}
  )
  model = model_parallel.DistributedModelParallel(clicks, device=_CPU)
  optimizer = keyed.KeyedOptimizerWrapper(
    dict(optimizers.in_backward_optimizer_filter(model.named_parameters())),
    lambda parameters: torch.optim.Adagrad(parameters, sizes.rate),
  )
  batches = torch_models.batches(name, rank)
  loss_fn = torch_models.loss(name)
  for num_steps in orders.numbers_of_steps(folder, f'worker:{rank}'):
    for _ in range(num_steps):
      ids, clicked = next(batches)
      optimizer.zero_grad()
      loss_fn(model(_keyed(ids)), clicked).backward()
      optimizer.step()


if __name__ == '__main__':
  main(*sys.argv[1:])
