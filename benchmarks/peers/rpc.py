"""A task of a parameter server on PyTorch's RPC.

Two ps hold what is trained, with its optimizer: of layers, every other kernel
and bias; of tables, every other row. Workers fetch parameters, or the rows
of a batch, and send gradients, which the ps apply one after another. A ps
answers with what its layers are then, as in PyTorch's tutorial, so that there
is one call for both.

Usage: rpc.py MODEL FOLDER JOB INDEX, with MASTER_ADDR and MASTER_PORT.
"""

from collections.abc import Iterator
import itertools
import sys
import threading
from typing import Any

import torch
from torch import nn
from torch.distributed import rpc

from benchmarks import orders
from benchmarks import workloads
from benchmarks.peers import torch_models

_NUM_PS, _NUM_WORKERS = workloads.NUM_PS, workloads.NUM_WORKERS

Values = list[torch.Tensor]


def _layers(name: str) -> nn.Sequential:
  if name == 'mlp':
    return torch_models.layers(torch_models.MLP.sizes)
  return torch_models.clicks_layers(torch_models.CLICKS[name])


class Shard:
  """What one ps holds.

  Args:
    name: of the model.
    index: of the ps.
  """

  def __init__(self, name: str, index: int) -> None:
    torch.manual_seed(1)
    self._parameters = list(_layers(name).parameters())[index::_NUM_PS]
    trained = list(self._parameters)
    self._tables = nn.ModuleList()
    if name in torch_models.CLICKS:
      sizes = torch_models.CLICKS[name]
      self._tables += [
        nn.Embedding(sizes.num_rows // _NUM_PS, sizes.width, sparse=True)
        for _ in range(sizes.num_tables)
      ]
      trained += self._tables.parameters()
    self._optimizer = torch_models.optimizer(name, trained)
    self._lock = threading.Lock()

  def fetch(self) -> Values:
    """The parameters of layers."""
    return [parameter.detach() for parameter in self._parameters]

  def look_up(self, rows: Values) -> Values:
    """Rows by their numbers, of each table."""
    return [
      table.weight.detach()[numbers]
      for table, numbers in zip(self._tables, rows, strict=True)
    ]

  def update(self, gradients: Values, *rows: Values) -> Values:
    """Applies gradients; the parameters of layers after that.

    Args:
      gradients: of the layers.
      *rows: the numbers of rows of each table, and their gradients.
    """
    with self._lock:
      for parameter, gradient in zip(self._parameters, gradients, strict=True):
        parameter.grad = gradient
      if rows:
        for table, *of_table in zip(self._tables, *rows, strict=True):
          numbers, values = of_table
          weight = table.weight
          weight.grad = torch.sparse_coo_tensor(
            numbers[None], values, weight.shape
          )
      self._optimizer.step()
      return self.fetch()


_shards: list[Shard] = []  # the ps' own


def _call(method: str, *args: Any) -> Any:
  return getattr(_shards[0], method)(*args)


def _on_ps(index: int, method: str, *args: Any) -> Any:
  """The future of a call."""
  return rpc.rpc_async(f'ps:{index}', _call, (method, *args))


def _on_all(method: str, *args: list[Any]) -> list[Any]:
  """The results of calls of all ps, each of which gets its arguments."""
  all_args = zip(*args, strict=True) if args else [()] * _NUM_PS
  calls = [_on_ps(i, method, *each) for i, each in enumerate(all_args)]
  return [call.wait() for call in calls]


class Worker:
  """Trains a model of its own with the parameters of the ps.

  Args:
    name: of the model.
    index: of the worker.
  """

  def __init__(self, name: str, index: int) -> None:
    self._layers = _layers(name)
    self._parameters = list(self._layers.parameters())
    self._loss_fn = torch_models.loss(name)
    self._batches = torch_models.batches(name, index)
    self._sizes = torch_models.CLICKS.get(name)
    self._take(_on_all('fetch'))

  def step(self) -> None:
    x, y = next(self._batches)
    rows: list[Any] = []
    if self._sizes:
      columns = x.reshape(len(x), -1).unbind(1)
      # Of each ps, in which examples each table is asked for one of its rows.
      chosen = [
        [torch.nonzero(column % _NUM_PS == i)[:, 0] for column in columns]
        for i in range(_NUM_PS)
      ]
      numbers = [
        [
          torch.div(column[c], _NUM_PS, rounding_mode='floor')
          for column, c in zip(columns, of_ps, strict=True)
        ]
        for of_ps in chosen
      ]
      x = torch.empty(len(x), len(columns), self._sizes.width)
      for of_ps, found in zip(chosen, _on_all('look_up', numbers), strict=True):
        for i, (c, values) in enumerate(zip(of_ps, found, strict=True)):
          x[c, i] = values
      x.requires_grad_()
    self._layers.zero_grad()
    self._loss_fn(self._layers(x.flatten(1)), y).backward()
    if self._sizes:
      grads = [[x.grad[c, i] for i, c in enumerate(of_ps)] for of_ps in chosen]
      rows = [numbers, grads]
    gradients = [parameter.grad for parameter in self._parameters]
    shares = [gradients[i::_NUM_PS] for i in range(_NUM_PS)]
    self._take(_on_all('update', shares, *rows))

  def _take(self, shares: list[Values]) -> None:
    with torch.no_grad():
      for i, values in enumerate(shares):
        own = self._parameters[i::_NUM_PS]
        for parameter, value in zip(own, values, strict=True):
          parameter.copy_(value)


def _names() -> Iterator[str]:
  numbers = {'ps': _NUM_PS, 'worker': _NUM_WORKERS}
  return itertools.chain.from_iterable(
    (f'{job}:{i}' for i in range(number)) for job, number in numbers.items()
  )


def main(name: str, folder: str, job: str, index: str) -> None:
  task, names = f'{job}:{index}', list(_names())
  if job == 'ps':
    _shards.append(Shard(name, int(index)))
  # Through shared memory, it would take CPU time from others while it waits.
  options = rpc.TensorPipeRpcBackendOptions(_transports=['uv'])
  rpc.init_rpc(
    task,
    rank=names.index(task),
    world_size=len(names),
    rpc_backend_options=options,
  )
  if job == 'worker':
    worker = Worker(name, int(index))
    for num_steps in orders.numbers_of_steps(folder, task):
      for _ in range(num_steps):
        worker.step()
  rpc.shutdown()


if __name__ == '__main__':
  main(*sys.argv[1:])
