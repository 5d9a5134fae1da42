"""The models of `benchmarks.workloads`, as users of PyTorch write them."""

from collections.abc import Callable
import itertools
from typing import Any

import torch
from torch import nn

from benchmarks import workloads

MLP = workloads.MLP
CLICKS = workloads.OF_TABLES


def layers(sizes: tuple[int, ...]) -> nn.Sequential:
  """Dense layers with a ReLU in between."""
  made: list[nn.Module] = []
  for inputs, outputs in itertools.pairwise(sizes):
    made += [nn.Linear(inputs, outputs), nn.ReLU()]
  return nn.Sequential(*made[:-1])


def clicks_layers(sizes: workloads.Clicks) -> nn.Sequential:
  """What comes after the tables."""
  return layers((sizes.num_tables * sizes.width, sizes.hidden, 1))


class Clicks(nn.Module):
  """Tables, whose gradients are sparse, and their layers."""

  def __init__(self, sizes: workloads.Clicks) -> None:
    super().__init__()
    self.tables = nn.ModuleList(
      nn.Embedding(sizes.num_rows, sizes.width, sparse=True)
      for _ in range(sizes.num_tables)
    )
    self.layers = clicks_layers(sizes)

  def forward(self, ids: torch.Tensor) -> torch.Tensor:
    columns = ids.reshape(len(ids), -1).unbind(1)
    rows = [t(c) for t, c in zip(self.tables, columns, strict=True)]
    return self.layers(torch.cat(rows, 1))


def model(name: str) -> nn.Module:
  """The model of a name."""
  return Clicks(CLICKS[name]) if name in CLICKS else layers(MLP.sizes)


def loss(name: str) -> Callable[..., torch.Tensor]:
  """The function of its loss."""
  if name in CLICKS:
    return nn.functional.binary_cross_entropy_with_logits
  return nn.functional.cross_entropy


def optimizer(name: str, parameters: Any) -> torch.optim.Optimizer:
  """The model's optimizer."""
  if name in CLICKS:
    return torch.optim.Adagrad(parameters, CLICKS[name].rate)
  return torch.optim.Adam(parameters, MLP.rate)


def batches(name: str, worker: int) -> Any:
  """A worker's batches, again and again."""
  workload = CLICKS.get(name, MLP)
  return itertools.cycle(
    [
      (torch.from_numpy(x), torch.from_numpy(y))
      for x, y in workload.batches(worker)
    ]
  )
