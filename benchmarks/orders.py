"""Orders to a process: work that it does when it is told to.

It needs nothing but Python, so that programs of other frameworks take orders,
too.
"""

from collections.abc import Iterator
import pathlib


def take(folder: str, task: str) -> Iterator[str]:
  """Within a program: the orders, each done when the next is asked for."""
  pipe = pathlib.Path(folder) / task
  with (
    open(f'{pipe}.orders') as orders,
    open(f'{pipe}.answers', 'w') as answers,
  ):
    for order in orders:
      yield order.strip()
      print('done', file=answers, flush=True)


def numbers_of_steps(folder: str, task: str) -> Iterator[int]:
  """As `take`, where all orders are to do so many steps."""
  for order in take(folder, task):
    yield int(order.split()[-1])
