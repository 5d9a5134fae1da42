"""Keras 3's `fit` on our strategy beside `tf_keras`' on TensorFlow's.

Two workers and two ps, as processes or all in one. Each side is in the middle
of a training and does an epoch in its turn. Ours has its steps in a loop, as
they are for the first minutes, unless the name says that they are unrolled.
Where tasks are processes of their own, bytes are those of all connections
between them, and memory is what each task has had at its peak.
"""

from collections.abc import Iterator
import contextlib

from benchmarks import keras_fit_task as task
from benchmarks import runner
from benchmarks import sides
from benchmarks import usage

_MODELS = ('MLP', 'embedding')
_MODELS_IN_PROCESSES = (
  *('MLP', 'MLP, unrolled', 'MLP, a dataset'),
  *('embedding', 'embedding, unrolled', 'embedding in 2 shards'),
)
_QUICK_MODELS = ('MLP, short executions',)
_NUM_STEPS = 400
_NUM_ROUNDS = 7
_NUM_STEPS_WITHOUT_LOOKUPS = 8


def compare(*, quick: bool) -> Iterator[runner.Comparison]:
  """Steps, bytes and memory for each model."""
  for model in _QUICK_MODELS if quick else _MODELS:
    yield from _compare_in_one_process(model, quick=quick)
  if not quick:
    for model in _MODELS_IN_PROCESSES:
      yield from _compare_processes(model)
    yield from _compare_lookups()


def _compare_in_one_process(
  model: str, *, quick: bool
) -> Iterator[runner.Comparison]:
  with contextlib.ExitStack() as stack:
    ours, stock = (
      stack.enter_context(sides.ProcessSide(_command(how, model, 'in process')))
      for how in ('ours', 'stock')
    )
    num_steps = 40 if quick else _NUM_STEPS
    yield runner.compare_times(
      f'fit: {model}, one process',
      lambda: ours.run('epoch', num_steps),
      lambda: stock.run('epoch', num_steps),
      num_steps=num_steps,
      num_rounds=2 if quick else _NUM_ROUNDS,
    )


def _compare_processes(model: str) -> Iterator[runner.Comparison]:
  with contextlib.ExitStack() as stack:
    ours, stock = (
      stack.enter_context(_cluster_side(how, model))
      for how in ('ours', 'stock')
    )
    yield runner.compare_times(
      f'fit: {model}, processes',
      lambda: ours.run('epoch', _NUM_STEPS),
      lambda: stock.run('epoch', _NUM_STEPS),
      num_steps=_NUM_STEPS,
      num_rounds=_NUM_ROUNDS,
    )
    yield _compare_bytes(f'fit: {model}, bytes', ours, stock, _NUM_STEPS)
    yield from _compare_memory(model, ours, stock)


def _compare_lookups() -> Iterator[runner.Comparison]:
  """Our strategy twice: once with embeddings as Keras itself has them."""
  with contextlib.ExitStack() as stack:
    ours, theirs = (
      stack.enter_context(_cluster_side(how, 'embedding, short executions'))
      for how in ('ours', 'no lookups')
    )
    num_steps = _NUM_STEPS_WITHOUT_LOOKUPS
    for side in (ours, theirs):
      side.run('epoch', num_steps)
    name = "fit: embedding, bytes, stock is Keras 3's own lookup"
    yield _compare_bytes(name, ours, theirs, num_steps)


def _command(how: str, model: str, where: str) -> sides.Command:
  return lambda folder: ['-m', task.__name__, how, model, where, folder]


def _cluster_side(how: str, model: str) -> sides.ClusterSide:
  return sides.ClusterSide(
    _command(how, model, 'processes'), task.NUM_WORKERS, task.NUM_PS
  )


def _compare_bytes(
  name: str,
  ours: sides.ClusterSide,
  stock: sides.ClusterSide,
  num_steps: int,
) -> runner.Comparison:
  kilobytes = [
    _bytes(side, num_steps) / num_steps / 1e3 for side in (ours, stock)
  ]
  return runner.Comparison(name, 'kB per step', *([k] for k in kilobytes))


def _bytes(side: sides.ClusterSide, num_steps: int) -> int:
  """What tasks exchange in an epoch."""
  ports = side.ports()
  before = usage.bytes_at_ports(ports)
  side.run('epoch', num_steps)
  return usage.bytes_at_ports(ports) - before


def _compare_memory(
  model: str, ours: sides.ClusterSide, stock: sides.ClusterSide
) -> Iterator[runner.Comparison]:
  peaks = [
    {task: usage.peak_megabytes(pid) for task, pid in side.pids().items()}
    for side in (ours, stock)
  ]
  for name in peaks[0]:
    yield runner.Comparison(
      f'fit: {model}, peak memory of {name}',
      'MB',
      *([megabytes[name]] for megabytes in peaks),
    )
