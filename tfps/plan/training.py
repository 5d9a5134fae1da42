"""Simulation of the workers and ps of a training job.

A step of a worker pulls parameters, computes the forward pass as they arrive
and the backward pass in reverse order, and pushes gradients as they are
computed. A ps applies each gradient on arrival, and the worker can then pull
its parameters for the next step while other gradients are still in transit.
"""

import collections
from collections.abc import Callable
from collections.abc import Sequence
import functools
import math

import numpy as np

from tfps.cluster import spec as spec_lib
from tfps.plan import jobs
from tfps.plan import messages as messages_lib
from tfps.plan import simulation as simulation_lib

# Suffixes of the names of a task's servers in the simulation.
COMPUTING, CODING, APPLYING = 'computing', 'encoding', 'applying'

_FORWARD = 1 / 3  # ratio of computing; the backward pass takes twice as long


class Training:
  """All workers and ps of a job.

  Args:
    job: the job.
    simulation: has flows between each worker and each ps in both directions,
      named by pairs of tasks.
    messages: the messages of a step.

  Attributes:
    finished: the end times of each worker's updates.
    each_step: called after each end of a worker's update.
  """

  def __init__(
    self,
    job: jobs.Job,
    simulation: simulation_lib.Simulation,
    messages: messages_lib.Messages,
  ) -> None:
    self.job = job
    self.simulation = simulation
    self.messages = messages
    self.ps = [str(spec_lib.Task('ps', i)) for i in range(job.num_ps)]
    self.finished: list[list[float]] = [[] for _ in range(job.num_workers)]
    self.each_step: Callable[[], None] = lambda: None
    self._round = _Round(self) if job.mode == 'sync' else None
    self._workers = [_Worker(self, i) for i in range(job.num_workers)]
    self._hosts = _hosts_of(self, self._workers)

  def start(self, within_secs: float, seed: int) -> None:
    """Schedules the start of all workers, at random times.

    Args:
      within_secs: the latest start, in seconds from now.
      seed: of the random times.
    """
    random = np.random.default_rng(seed)
    for worker in self._workers:
      self.simulation.at(random.uniform(0, within_secs), worker.begin)

  def compute_secs(self, random: np.random.Generator) -> float:
    """Returns the computing seconds of an update's steps, log-normal."""
    mean = self.job.model.compute_secs * self.job.steps_per_update
    if not self.job.compute_spread:
      return mean
    variance = math.log1p(self.job.compute_spread**2)
    return mean * random.lognormal(-variance / 2, math.sqrt(variance))

  @property
  def updates_per_execution(self) -> int:
    """The number of updates per execution of a worker."""
    return max(1, self.job.steps_per_execution // self.job.steps_per_update)

  def overhead_secs(self, update: int) -> float:
    """Returns the seconds of an update's steps other than computing."""
    costs = self.job.costs
    secs = costs.step_secs * self.job.steps_per_update
    if update % self.updates_per_execution == 0:
      secs += costs.execution_secs
    return secs

  def computed(self, worker: '_Worker', message: int) -> None:
    """Handles a gradient message that a worker has computed."""
    host = self._hosts.get(worker.index)
    if host is None:
      push = self.messages.pushes[message]
      worker.push(push, lambda: self.applied(worker, message))
    else:
      host.computed()

  def applied(self, worker: '_Worker', message: int) -> None:
    """Handles a gradient message of a worker that a ps has applied."""
    if self._round is None:
      worker.may_pull(message)
    else:
      self._round.arrived(worker)


class _Worker:
  """One worker.

  Args:
    training: the training that it belongs to.
    index: the index of its task.
  """

  def __init__(self, training: Training, index: int) -> None:
    self._training = training
    self._simulation = training.simulation
    self._job = training.job
    self.index = index
    self._task = str(spec_lib.Task('worker', index))
    self._computing, self._coding = (
      f'{self._task}, {what}' for what in (COMPUTING, CODING)
    )
    self._random = np.random.default_rng(index)
    found = training.messages
    self._pulls = sorted(found.pulls, key=lambda m: min(m.shards))
    self._pushes = found.pushes
    self._requests = {m.ps: m for m in found.requests}
    self._row_pulls = set(map(id, found.rows))
    self._needs = [
      [i for i, push in enumerate(self._pushes) if push.shards & pull.shards]
      for pull in self._pulls
    ]
    self._needed_by: list[list[int]] = [[] for _ in self._pushes]
    for pull, pushes in enumerate(self._needs):
      for push in pushes:
        self._needed_by[push].append(pull)
    # How often each message was applied, requested, and received.
    self._applied = [0] * len(self._pushes)
    self._pulled = [0] * len(self._pulls)
    self._arrived = [0] * len(self._pulls)
    self._requested = collections.Counter[int]()
    self._request_calls = collections.Counter[int]()
    total = sum(m.value_bytes for m in self._pulls)
    self._shares = [m.value_bytes / total for m in self._pulls]
    self._step = 0
    self._stage = 0
    self._secs = 0.0
    self._is_waiting = False
    self._computed: list[int] = []

  def begin(self) -> None:
    """Starts the first step."""
    self._begin_step()
    for pull in range(len(self._pulls)):
      self._pull(pull)

  def may_pull(self, push: int) -> None:
    """Pulls what depends on a push, which has been applied."""
    self._applied[push] += 1
    if min(self._applied) == self._applied[push]:
      done = self._training.finished[self.index]
      if len(done) < min(self._applied):
        done.append(self._simulation.now)
        self._training.each_step()
    if min(self._applied) % self._training.updates_per_execution == 0:
      for pull in range(len(self._pulls)):
        self._pull(pull)
    for pull in self._needed_by[push]:
      self._pull(pull)

  def may_pull_all(self) -> None:
    """Pulls everything: all pushes were applied, or dropped as too late."""
    for push in range(len(self._pushes)):
      self.may_pull(push)

  def _begin_step(self) -> None:
    self._stage = 0
    self._computed = [0] * len(self._pushes)
    self._secs = self._training.compute_secs(self._random)
    self._request(self._step)
    if self._begin_of(self._step) == self._begin_of(self._step + 1):
      self._request(self._step + 1)  # its batch is known already
    self._simulation.work(
      self._computing, self._training.overhead_secs(self._step), self._advance
    )

  def _begin_of(self, step: int) -> int:
    """Returns the first step of the execution that a step belongs to."""
    return step - step % self._training.updates_per_execution

  def _request(self, step: int) -> None:
    for ps, message in self._requests.items():
      if self._request_calls[ps] <= step:
        self._request_calls[ps] += 1
        self._send(
          self._task,
          self._training.ps[ps],
          message.num_bytes,
          functools.partial(self._is_requested, ps),
        )

  def _is_requested(self, ps: int) -> None:
    self._requested[ps] += 1
    for i, pull in enumerate(self._pulls):
      if pull.ps == ps and id(pull) in self._row_pulls:
        self._pull(i)

  def _pull(self, index: int) -> None:
    """Makes the ps send parameters once all updates they need are applied."""
    pull = self._pulls[index]
    step = self._pulled[index]
    ahead = self._job.prefetch
    if id(pull) in self._row_pulls:
      ahead = 0
      if self._requested[pull.ps] <= step:
        return
    # Executions do not overlap.
    if min(self._applied) < self._begin_of(step):
      return
    if min(self._applied[i] for i in self._needs[index]) < step - ahead:
      return
    self._pulled[index] += 1
    ps = self._training.ps[pull.ps]
    secs = pull.coded_bytes / self._job.costs.codec_bytes_per_sec

    def send() -> None:
      self._send(ps, self._task, pull.num_bytes, decode)

    def decode() -> None:
      self._simulation.work(self._coding, secs, arrive)

    def arrive() -> None:
      self._arrived[index] += 1
      self._advance()

    self._simulation.work(f'{ps}, {APPLYING}', secs, send)
    self._pull(index)

  def _advance(self) -> None:
    """Computes the next stage once its parameters have arrived."""
    if self._is_waiting:
      return
    number = len(self._pulls)
    # The first of an update's steps waits for parameters, the last one computes
    # the gradients that are pushed.
    num_steps = self._job.steps_per_update
    if self._stage < number:
      if self._arrived[self._stage] <= self._step:
        return
      share = self._shares[self._stage] * _FORWARD
    elif self._stage < 2 * number:
      share = self._shares[2 * number - 1 - self._stage] * (1 - _FORWARD)
      if self._stage == number:
        share += num_steps - 1
    else:
      self._step += 1
      self._begin_step()
      return
    self._is_waiting = True
    self._simulation.work(
      self._computing, share * self._secs / num_steps, self._end_stage
    )

  def _end_stage(self) -> None:
    self._is_waiting = False
    stage, number = self._stage, len(self._pulls)
    self._stage += 1
    if stage >= number:
      for push in self._needs[2 * number - 1 - stage]:
        self._computed[push] += 1
        if self._computed[push] == self._num_needed(push):
          self._training.computed(self, push)
    self._advance()

  def _num_needed(self, push: int) -> int:
    return len(self._needed_by[push])

  def push(self, push: messages_lib.Message, then: Callable[[], None]) -> None:
    """Sends gradients to a ps, which applies them.

    Args:
      push: the message.
      then: called once it is applied.
    """
    costs = self._job.costs
    coding = push.coded_bytes / costs.codec_bytes_per_sec
    ps = self._training.ps[push.ps]

    def send() -> None:
      self._send(self._task, ps, push.num_bytes, apply)

    def apply() -> None:
      secs = coding + push.value_bytes / costs.apply_bytes_per_sec
      self._simulation.work(f'{ps}, {APPLYING}', secs, then)

    self._simulation.work(self._coding, coding, send)

  def _send(
    self,
    source: str,
    destination: str,
    num_bytes: float,
    then: simulation_lib.Then,
  ) -> None:
    flow = source, destination
    self._simulation.at(
      self._job.costs.message_secs,
      lambda: self._simulation.send(flow, num_bytes, then),
    )


class _Host:
  """The workers of a host that push as one, through the first of them.

  Summation of their gradients in memory is taken to need no time.

  Args:
    training: the training that they belong to.
    workers: the workers of the host.
  """

  def __init__(self, training: Training, workers: Sequence[_Worker]) -> None:
    self._training = training
    self._workers = workers
    self._pushes = messages_lib.of_sum(training.job, len(workers)).pushes
    self._num_computed = 0

  def computed(self) -> None:
    """Handles one gradient message of a worker."""
    self._num_computed += 1
    if self._num_computed < len(self._workers) * len(self._pushes):
      return
    self._num_computed = 0
    for i, push in enumerate(self._pushes):
      self._workers[0].push(push, functools.partial(self._applied, i))

  def _applied(self, message: int) -> None:
    for worker in self._workers:
      self._training.applied(worker, message)


def _hosts_of(
  training: Training, workers: Sequence[_Worker]
) -> dict[int, _Host]:
  """Returns the host of each worker index; empty unless `by_host`."""
  job = training.job
  if not job.by_host:
    return {}
  own: dict[str, list[_Worker]] = collections.defaultdict(list)
  for task in job.topology.tasks('worker'):
    own[job.topology.hosts[task]].append(workers[task.index])
  hosts = [_Host(training, each) for each in own.values()]
  return {
    worker.index: host
    for host, each in zip(hosts, own.values(), strict=True)
    for worker in each
  }


class _Round:
  """Synchronous updates with backup workers.

  An update takes the first gradients that arrive. Later ones are dropped, and
  their workers continue with the current parameters (J. Chen et al.,
  "Revisiting distributed synchronous SGD", 2016).

  Args:
    training: the training that it belongs to.
  """

  def __init__(self, training: Training) -> None:
    self._training = training
    self._number = 0
    self._of: collections.Counter[int] = collections.Counter()
    self._parts: collections.Counter[int] = collections.Counter()
    self._done: list[_Worker] = []

  def arrived(self, worker: _Worker) -> None:
    """Handles one gradient message of a worker."""
    self._parts[worker.index] += 1
    if self._parts[worker.index] < len(self._training.messages.pushes):
      return
    self._parts[worker.index] = 0
    if self._of[worker.index] < self._number:
      self._release([worker])
      return
    self._done.append(worker)
    job = self._training.job
    if len(self._done) < job.num_workers - job.backup_workers:
      return
    done, self._done = self._done, []
    self._number += 1
    self._release(done)

  def _release(self, workers: Sequence[_Worker]) -> None:
    for worker in workers:
      self._of[worker.index] = self._number
      worker.may_pull_all()
