"""The models of `benchmarks.workloads`, as users of PyTorch write them."""

from collections.abc import Callable
import itertools
from typing import Any

import torch
from torch import nn

from benchmarks import workloads

MLP, CLICKS = workloads.MLP, workloads.CLICKS


def layers(sizes: tuple[int, ...]) -> nn.Sequential:
  """Dense layers with a ReLU in between."""
  made: list[nn.Module] = []
  for inputs, outputs in itertools.pairwise(sizes):
    made += [nn.Linear(inputs, outputs), nn.ReLU()]
  return nn.Sequential(*made[:-1])


def clicks_layers() -> nn.Sequential:
  """What comes after the table."""
  return layers((CLICKS.width, CLICKS.hidden, 1))


class Clicks(nn.Module):
  """The table, whose gradients are sparse, and its layers."""

  def __init__(self) -> None:
    super().__init__()
    self.table = nn.Embedding(CLICKS.num_rows, CLICKS.width, sparse=True)
    self.layers = clicks_layers()

  def forward(self, ids: torch.Tensor) -> torch.Tensor:
    return self.layers(self.table(ids))


MODELS: dict[str, Callable[[], nn.Module]] = {
  'mlp': lambda: layers(MLP.sizes),
  'clicks': Clicks,
}
LOSSES: dict[str, Callable[..., torch.Tensor]] = {
  'mlp': nn.functional.cross_entropy,
  'clicks': nn.functional.binary_cross_entropy_with_logits,
}


def optimizer(name: str, parameters: Any) -> torch.optim.Optimizer:
  """The model's optimizer."""
  if name == 'mlp':
    return torch.optim.Adam(parameters, MLP.rate)
  return torch.optim.Adagrad(parameters, CLICKS.rate)


def batches(name: str, worker: int) -> Any:
  """A worker's batches, again and again."""
  workload = {'mlp': MLP, 'clicks': CLICKS}[name]
  return itertools.cycle(
    [
      (torch.from_numpy(x), torch.from_numpy(y))
      for x, y in workload.batches(worker)
    ]
  )
