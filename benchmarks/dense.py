"""The steady speed of two dense models, against stock and a single process."""

from collections.abc import Iterator

from benchmarks import steady
from benchmarks import steady_task as task
from benchmarks import tables

TITLES = {
  'mlp': 'MLP of 0.94 MB, Adam, 64 examples a step',
  'large': '13 variables of 9.4 MB, gradient descent, 8 examples a step',
}
_CLUSTER = '2 workers and 2 ps on one machine'
_QUICK_VARIANTS = (task.STOCK, task.COORDINATOR)
NOTES = ('*20 a call* is 20 steps to an execution.',)


def compare(*, quick: bool) -> Iterator[tables.Table]:
  """A table for each model."""
  for model in list(TITLES)[:1] if quick else TITLES:
    yield table_of(f'dense-{model}', model, TITLES[model], quick=quick)


def table_of(name: str, model: str, title: str, *, quick: bool) -> tables.Table:
  """Measures all variants of `steady_task` with a model."""
  variants = _QUICK_VARIANTS if quick else task.VARIANTS
  by_name = {variant: steady.side(variant, model) for variant in variants}
  turns = steady.in_turns(by_name, quick=quick)
  return steady.table(
    name, f'{title}, {_CLUSTER}', turns, base=(task.STOCK, 'stock'), notes=NOTES
  )
