"""A worker of TorchRec, which divides the table among the workers.

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
from benchmarks.peers import torch_models

_CLICKS = torch_models.CLICKS
_CPU = torch.device('cpu')


class Clicks(nn.Module):
  """The table, which is made where it is to be, and its layers."""

  def __init__(self) -> None:
    super().__init__()
    self.tables = torchrec.EmbeddingBagCollection(
      device=torch.device('meta'),
      tables=[
        torchrec.EmbeddingBagConfig(
          name='table',
          embedding_dim=_CLICKS.width,
          num_embeddings=_CLICKS.num_rows,
          feature_names=['id'],
        )
      ],
    )
    self.layers = torch_models.clicks_layers()

  def forward(self, ids: torchrec.KeyedJaggedTensor) -> torch.Tensor:
    return self.layers(self.tables(ids).values())


def _keyed(ids: torch.Tensor) -> torchrec.KeyedJaggedTensor:
  return torchrec.KeyedJaggedTensor(
    keys=['id'], values=ids, lengths=torch.ones(len(ids), dtype=torch.int32)
  )


def main(name: str, folder: str) -> None:
  assert name == 'clicks', name
  distributed.init_process_group('gloo')
  rank = distributed.get_rank()
  torch.manual_seed(1)
  clicks = Clicks()
  optim.apply_optimizer_in_backward(
    torch.optim.Adagrad, clicks.tables.parameters(), {'lr': _CLICKS.rate}
  )
  model = model_parallel.DistributedModelParallel(clicks, device=_CPU)
  optimizer = keyed.KeyedOptimizerWrapper(
    dict(optimizers.in_backward_optimizer_filter(model.named_parameters())),
    lambda parameters: torch.optim.Adagrad(parameters, _CLICKS.rate),
  )
  batches = torch_models.batches(name, rank)
  loss_fn = torch_models.LOSSES[name]
  for num_steps in orders.numbers_of_steps(folder, f'worker:{rank}'):
    for _ in range(num_steps):
      ids, clicked = next(batches)
      optimizer.zero_grad()
      loss_fn(model(_keyed(ids)), clicked).backward()
      optimizer.step()


if __name__ == '__main__':
  main(*sys.argv[1:])
