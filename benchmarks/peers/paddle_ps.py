"""A task of Paddle's parameter server, which trains asynchronously.

Its ps have Adagrad for tables alone: the layers of that model are trained by
Adam.

Usage: paddle_ps.py MODEL FOLDER, with the variables of Paddle's launcher.
"""

import itertools
import os
import sys
from typing import Any

import paddle
from paddle.distributed import fleet

from benchmarks import orders
from benchmarks import workloads

_WORKLOADS = {'mlp': workloads.MLP, 'clicks': workloads.CLICKS}


def _layers(x: Any, sizes: tuple[int, ...]) -> Any:
  for i, size in enumerate(sizes):
    is_last = i == len(sizes) - 1
    x = paddle.static.nn.fc(x, size, activation=None if is_last else 'relu')
  return x


def _mlp() -> tuple[list[Any], Any, Any]:
  """The inputs, the loss and the optimizer."""
  mlp = workloads.MLP
  x = paddle.static.data('x', [None, mlp.sizes[0]], 'float32')
  y = paddle.static.data('y', [None, 1], 'int64')
  logits = _layers(x, mlp.sizes[1:])
  losses = paddle.nn.functional.softmax_with_cross_entropy(logits, y)
  return [x, y], paddle.mean(losses), paddle.optimizer.Adam(mlp.rate)


def _clicks() -> tuple[list[Any], Any, Any]:
  clicks = workloads.CLICKS
  ids = paddle.static.data('ids', [None, 1], 'int64')
  clicked = paddle.static.data('clicked', [None, 1], 'float32')
  table = paddle.static.nn.sparse_embedding(
    ids,
    [clicks.num_rows, clicks.width],
    param_attr=paddle.ParamAttr(name='table'),
  )
  rows = paddle.reshape(table, [-1, clicks.width])
  logits = _layers(rows, (clicks.hidden, 1))
  loss = paddle.nn.functional.binary_cross_entropy_with_logits(logits, clicked)
  return [ids, clicked], loss, paddle.optimizer.Adam(clicks.rate)


def _table_configs() -> dict[str, dict[str, Any]]:
  """The rule by which ps update the table: of the first column, and others."""
  rules = {}
  for part in ('embed', 'embedx'):
    rule = f'table_parameters.table.accessor.{part}_sgd_param'
    rules[f'{rule}.name'] = 'SparseAdaGradSGDRule'
    rules[f'{rule}.adagrad.learning_rate'] = workloads.CLICKS.rate
  return {'table': rules}


def main(name: str, folder: str) -> None:
  paddle.enable_static()
  fleet.init(fleet.PaddleCloudRoleMaker())
  strategy = fleet.DistributedStrategy()
  strategy.a_sync = True
  if name == 'clicks':
    strategy.sparse_table_configs = _table_configs()
  inputs, loss, optimizer = {'mlp': _mlp, 'clicks': _clicks}[name]()
  fleet.distributed_optimizer(optimizer, strategy).minimize(loss)
  if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
    return
  executor = paddle.static.Executor(paddle.CPUPlace())
  executor.run(paddle.static.default_startup_program())
  fleet.init_worker()
  worker = int(os.environ['PADDLE_TRAINER_ID'])
  batches = itertools.cycle(_WORKLOADS[name].batches(worker))
  program = paddle.static.default_main_program()
  for num_steps in orders.numbers_of_steps(folder, f'worker:{worker}'):
    for _ in range(num_steps):
      values = [column.reshape(len(column), -1) for column in next(batches)]
      names = [variable.name for variable in inputs]
      executor.run(program, feed=dict(zip(names, values, strict=True)))
  fleet.stop_worker()


if __name__ == '__main__':
  main(*sys.argv[1:])
