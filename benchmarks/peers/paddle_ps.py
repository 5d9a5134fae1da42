"""A task of Paddle's parameter server, which trains asynchronously.

Its ps have Adagrad for tables alone: the layers of that model are trained by
Adam. Ids of all features are in one table, as in Paddle's own examples: a step
calls the ps for each table by itself.

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


def _clicks(sizes: workloads.Clicks) -> tuple[list[Any], Any, Any]:
  ids = paddle.static.data('ids', [None, sizes.num_tables], 'int64')
  clicked = paddle.static.data('clicked', [None, 1], 'float32')
  numbers = ids + paddle.arange(sizes.num_tables) * sizes.num_rows
  rows = [
    paddle.static.nn.sparse_embedding(
      numbers[:, i : i + 1],
      [sizes.num_tables * sizes.num_rows, sizes.width],
      param_attr=paddle.ParamAttr(name='table'),
    )
    for i in range(sizes.num_tables)
  ]
  x = paddle.concat([paddle.reshape(r, [-1, sizes.width]) for r in rows], 1)
  logits = _layers(x, (sizes.hidden, 1))
  loss = paddle.nn.functional.binary_cross_entropy_with_logits(logits, clicked)
  return [ids, clicked], loss, paddle.optimizer.Adam(sizes.rate)


def _table_configs(sizes: workloads.Clicks) -> dict[str, dict[str, Any]]:
  """The rule by which ps update the table: of the first column, and others."""
  rules = {}
  for part in ('embed', 'embedx'):
    rule = f'table_parameters.table.accessor.{part}_sgd_param'
    rules[f'{rule}.name'] = 'SparseAdaGradSGDRule'
    rules[f'{rule}.adagrad.learning_rate'] = sizes.rate
  return {'table': rules}


def main(name: str, folder: str) -> None:
  paddle.enable_static()
  fleet.init(fleet.PaddleCloudRoleMaker())
  strategy = fleet.DistributedStrategy()
  strategy.a_sync = True
  sizes = workloads.OF_TABLES.get(name)
  if sizes:
    strategy.sparse_table_configs = _table_configs(sizes)
  inputs, loss, optimizer = _clicks(sizes) if sizes else _mlp()
  fleet.distributed_optimizer(optimizer, strategy).minimize(loss)
  if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
    return
  executor = paddle.static.Executor(paddle.CPUPlace())
  executor.run(paddle.static.default_startup_program())
  fleet.init_worker()
  worker = int(os.environ['PADDLE_TRAINER_ID'])
  batches = itertools.cycle((sizes or workloads.MLP).batches(worker))
  program = paddle.static.default_main_program()
  for num_steps in orders.numbers_of_steps(folder, f'worker:{worker}'):
    for _ in range(num_steps):
      values = [column.reshape(len(column), -1) for column in next(batches)]
      names = [variable.name for variable in inputs]
      executor.run(program, feed=dict(zip(names, values, strict=True)))
  fleet.stop_worker()


if __name__ == '__main__':
  main(*sys.argv[1:])
