"""Being looked at: the same steps with and without observers, in turns.

The observers' own CPU time, in other processes, does not count.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import threading
from typing import Any
import urllib.request

from benchmarks import sides
from benchmarks import steady
from benchmarks import steady_task
from benchmarks import tables
from benchmarks import workloads
import tfps
from tfps._utils import ports
from tfps._utils import threads
from tfps.monitor import dashboard
from tfps.monitor import endpoint
from tfps.server import job_table
from tfps.server import mailbox

_TITLE = (
  'A table of 1,000,000 rows of 32, Adagrad, 512 ids a step by Zipf(1.2), 2 '
  'workers and 2 ps on one machine, coordinator, 20 a call, while it is '
  'looked at'
)
_ALONE = 'by nobody'
_METRICS = 'metrics of all tasks are read each 2 seconds'
_PAGE = 'the web page is open'
_TOP = '`tfps top` runs'
_OBSERVERS = _METRICS, _PAGE, _TOP
_EVERY_SECS = 2.0  # as the page and `tfps top` by default
_TIMEOUT_SECS = 30.0


def compare(*, quick: bool) -> Iterator[tables.Table]:
  """A table with a row for each observer."""
  observed = {name: _ObservedSide(name) for name in (_ALONE, *_OBSERVERS)}
  turns = steady.in_turns(observed, quick=quick)
  missed = [name for name in _OBSERVERS if not observed[name].num_looks]
  if missed:
    raise RuntimeError(f'Nobody has answered while {", ".join(missed)}.')
  yield steady.table('observed', _TITLE, turns, base=(_ALONE, 'by nobody'))


class _ObservedSide(sides.ProgramsSide):
  """A cluster of processes that is looked at while it trains.

  Args:
    observer: by whom; one of the rows.

  Attributes:
    num_looks: how often it was looked at.
  """

  def __init__(self, observer: str) -> None:
    self.num_looks = 0
    self._observer = observer
    self._metrics_ports: list[int] = []
    self._page = ''
    self._top: job_table.JobTable | None = None
    super().__init__(self._programs_in, ['chief:0'])

  def run(self, what: str, num_steps: int) -> None:
    if self._observer == _ALONE:
      super().run(what, num_steps)
      return
    is_over = threading.Event()

    def look() -> None:
      while not is_over.wait(_EVERY_SECS):
        self._look_if_there()

    looking = threads.begin('look', look)
    try:
      super().run(what, num_steps)
    finally:
      is_over.set()
    looking.result()

  def _look_if_there(self) -> None:
    try:
      self._look()
    except OSError:
      if self.num_looks:  # nobody answers until the first step is prepared
        raise
    else:
      self.num_looks += 1

  def _look(self) -> None:
    for port in self._metrics_ports:
      _get(f'http://127.0.0.1:{port}/metrics')
    if self._page:
      _get(f'{self._page}/data?after=0')
    if self._top is not None:
      self._top.read()

  def _programs_in(self, folder: str) -> Mapping[str, sides.Program]:
    cluster = sides.local_cluster(
      chief=1, worker=workloads.NUM_WORKERS, ps=workloads.NUM_PS
    )
    if self._observer == _TOP:
      known = {task: cluster.address(task) for task in cluster.tasks('ps')}
      self._top = job_table.JobTable(
        known, timeout_secs=_TIMEOUT_SECS, mailboxes=mailbox.Mailboxes()
      )
    chief = steady_task.__name__, steady_task.COORDINATOR, 'clicks', folder
    return {
      str(task): sides.Program(
        sides.words_of(task, chief),
        {
          'TF_CONFIG': cluster.with_task(task).tf_config(),
          **self._env_of(task),
        },
      )
      for task in cluster.tasks()
    }

  def _env_of(self, task: tfps.Task) -> dict[str, str]:
    if self._observer == _METRICS:
      self._metrics_ports.append(ports.pick())
      return {endpoint.VARIABLE: str(self._metrics_ports[-1])}
    if self._observer == _PAGE and task.job == 'chief':
      port = ports.pick()
      self._page = f'http://127.0.0.1:{port}'
      return {dashboard.VARIABLE: str(port)}
    return {}


def _get(url: str) -> Any:
  with urllib.request.urlopen(url, timeout=_TIMEOUT_SECS) as answer:
    return answer.read()
