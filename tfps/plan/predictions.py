"""Predictions of a job's step time and bottleneck."""

from collections.abc import Hashable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses

from tfps.cluster import topology as topology_lib
from tfps.plan import jobs
from tfps.plan import messages as messages_lib
from tfps.plan import simulation as simulation_lib
from tfps.plan import training as training_lib

_FABRIC = 'the fabric'
# Steps of each worker to skip, and to measure, in small and large jobs.
_FEW, _MANY = (3, 8), (2, 4)
_MANY_FLOWS = 200
_NUM_TRIALS = 5
_LOCAL_MBIT_PER_SEC = 20_000.0  # between tasks of one host, over gRPC
_BOTTLENECK_BUSY = 0.6  # ratio of time


@dataclasses.dataclass(frozen=True)
class Prediction:
  """The predicted speed and load of a job.

  Attributes:
    secs_per_step: seconds from the end of a worker's step to the end of its
      next one.
    steps_per_sec: steps per second of all workers together.
    updates_per_sec: updates of parameters per second. In mode 'sync' the steps
      of all workers make one update.
    num_bytes: bytes that pass each link for one step of one worker, on average
      over workers and without headers.
    busy: ratio of time in which each link, task and the fabric is busy.
    ps_bytes: bytes of the variables on each ps, without optimizer slots.
    bound_secs: lower bound of the seconds between two steps of all workers
      together, by the busiest link or ps alone.
  """

  secs_per_step: float
  steps_per_sec: float
  updates_per_sec: float
  num_bytes: Mapping[str, float]
  busy: Mapping[str, float]
  ps_bytes: tuple[int, ...]
  bound_secs: float

  @property
  def bottleneck(self) -> str:
    """The busiest resource, if it is busy most of the time; else 'latency'.

    Latency means that tasks wait for each other: workers for parameters, the ps
    for gradients. More workers or prefetching fill such gaps.
    """
    name = max(self.busy, key=lambda each: self.busy[each])
    return name if self.busy[name] >= _BOTTLENECK_BUSY else 'latency'


def predict(job: jobs.Job) -> Prediction:
  """Simulates some steps of a job.

  Workers start at random times, so that one may pull while another pushes; if
  they do not wait for each other, their offsets persist and affect the result.
  Hence several trials are averaged. Each measures the steps after a warm-up,
  until one worker has finished a fixed number.

  Args:
    job: the job.

  Raises:
    ValueError: the job's hosts or racks do not fit its cluster.
  """
  messages = messages_lib.of(job)
  number = 1 if _is_insensitive_to_start(job) else _NUM_TRIALS
  trials = [_try(job, messages, seed) for seed in range(number)]
  steps_per_sec = 1 / _mean([1 / trial.steps_per_sec for trial in trials])
  num_bytes = bytes_of_links(job, messages)
  updates_per_sec = steps_per_sec / job.steps_per_update
  if job.mode == 'sync':
    updates_per_sec /= job.num_workers - job.backup_workers
  return Prediction(
    secs_per_step=job.num_workers / steps_per_sec,
    steps_per_sec=steps_per_sec,
    updates_per_sec=updates_per_sec,
    num_bytes={str(link): number for link, number in num_bytes.items()},
    busy={
      name: _mean([trial.busy.get(name, 0.0) for trial in trials])
      for name in trials[0].busy
    },
    ps_bytes=messages.ps_bytes,
    bound_secs=bound_secs(job, num_bytes, messages),
  )


@dataclasses.dataclass(frozen=True)
class _Trial:
  """The result of one simulation."""

  steps_per_sec: float
  busy: Mapping[str, float]


def _try(job: jobs.Job, messages: messages_lib.Messages, seed: int) -> _Trial:
  simulation = _simulation(job)
  training = training_lib.Training(job, simulation, messages)
  training.start(_secs_alone(job, messages), seed)
  window = _run(simulation, training)
  rates = [_rate(times, window) for times in training.finished]
  return _Trial(sum(rates) * job.steps_per_update, _busy(simulation, window))


def _is_insensitive_to_start(job: jobs.Job) -> bool:
  """Returns whether the workers' start times do not affect the result."""
  is_large = job.num_workers * job.num_ps > _MANY_FLOWS
  return is_large or job.num_workers == 1 or job.mode == 'sync'


def _secs_alone(job: jobs.Job, messages: messages_lib.Messages) -> float:
  """Returns about the seconds of a worker's step without contention."""
  if job.mode == 'sync':
    return 0.0
  num_bytes = sum(m.num_bytes for m in (*messages.pulls, *messages.pushes))
  secs = num_bytes / job.links.bytes_per_sec(job.links.mbit_per_sec)
  return secs + job.model.compute_secs * job.steps_per_update


def _mean(values: Sequence[float]) -> float:
  return sum(values) / len(values)


def bytes_of_links(
  job: jobs.Job, messages: messages_lib.Messages
) -> dict[topology_lib.Link, float]:
  """Returns the bytes per link for a step of one worker, averaged over workers.

  Args:
    job: the job.
    messages: the messages of a step.
  """
  found: dict[topology_lib.Link, float] = {}
  topology = job.topology
  share = 1 / job.num_workers / job.steps_per_update
  sums = _sums(job, messages)
  for ps in topology.tasks('ps'):
    pulled = messages.pulled(ps.index) * share
    for worker in topology.tasks('worker'):
      pushed = messages.requested(ps.index) * share
      if worker.index in job.pushers:
        own = sums[job.pushers[worker.index]]
        pushed += (own.pushed(ps.index) - own.requested(ps.index)) * share
      for path, num_bytes in (
        (topology.path(ps, worker), pulled),
        (topology.path(worker, ps), pushed),
      ):
        for link in path:
          found[link] = found.get(link, 0.0) + num_bytes
  return dict(sorted(found.items()))


def _sums(
  job: jobs.Job, messages: messages_lib.Messages
) -> dict[int, messages_lib.Messages]:
  """Returns the messages of summed gradients, by the number of workers."""
  numbers = set(job.pushers.values())
  return {
    n: messages if n == 1 else messages_lib.of_sum(job, n) for n in numbers
  }


def bound_secs(
  job: jobs.Job,
  num_bytes: Mapping[topology_lib.Link, float],
  messages: messages_lib.Messages,
) -> float:
  """Returns a lower bound of the seconds between two steps of all workers.

  Args:
    job: the job.
    num_bytes: bytes per link; see `bytes_of_links`.
    messages: the messages of a step.

  Returns:
    The seconds that the busiest link or ps needs for a step of one worker.
  """
  secs = [0.0]
  sums = _sums(job, messages)
  for link, number in num_bytes.items():
    rate = job.rate(link)
    if rate is not None:
      secs.append(number / rate)
  for ps in range(job.num_ps):
    pulls = [message for message in messages.pulls if message.ps == ps]
    pushes = [
      message
      for number in job.pushers.values()
      for message in sums[number].pushes
      if message.ps == ps
    ]
    coded = sum(m.coded_bytes for m in pulls) * job.num_workers
    coded += sum(m.coded_bytes for m in pushes)
    busy = coded / job.costs.codec_bytes_per_sec
    busy += sum(m.value_bytes for m in pushes) / job.costs.apply_bytes_per_sec
    secs.append(busy / job.num_workers / job.steps_per_update)
  return max(secs)


def _simulation(job: jobs.Job) -> simulation_lib.Simulation:
  topology, links = job.topology, job.links
  pairs = [
    pair
    for ps in topology.tasks('ps')
    for worker in topology.tasks('worker')
    for pair in ((ps, worker), (worker, ps))
  ]
  paths: dict[Hashable, list[Hashable]] = {}
  rates: dict[Hashable, float] = {}
  max_rates: dict[Hashable, float] = {}
  for pair in pairs:
    flow = str(pair[0]), str(pair[1])
    path = paths[flow] = []
    for link in topology.path(*pair):
      rate = job.rate(link)
      if rate is not None:
        path.append(link)
        rates[link] = rate
    limit = links.connection_mbit_per_sec if path else _LOCAL_MBIT_PER_SEC
    if limit is not None:
      max_rates[flow] = links.bytes_per_sec(limit)
    if path and links.fabric_mbit_per_sec is not None:
      path.append(_FABRIC)
      rates[_FABRIC] = links.bytes_per_sec(links.fabric_mbit_per_sec)
  return simulation_lib.Simulation(
    rates,
    paths,
    max_rates=max_rates,
    num_cpus=job.costs.shared_cpus,
  )


def _run(
  simulation: simulation_lib.Simulation, training: training_lib.Training
) -> tuple[float, float]:
  """Runs a simulation; returns the begin and end of the measured time."""
  finished = training.finished
  job = training.job
  is_large = job.num_workers * job.num_ps > _MANY_FLOWS
  first, number = _MANY if is_large else _FEW
  begun: list[float] = []

  def check_progress() -> None:
    if not begun and min(map(len, finished)) >= first:
      begun.append(simulation.now)
      simulation.reset()
    if begun and max(map(len, finished)) >= first + number:
      simulation.stop()

  training.each_step = check_progress
  simulation.run()
  return begun[0], simulation.now


def _rate(times: list[float], window: tuple[float, float]) -> float:
  """Returns the steps per second in a window, from the steps' end times."""
  inside = [t for t in times if window[0] <= t <= window[1]]
  if len(inside) < 2:
    return len(inside) / max(window[1] - window[0], 1e-12)
  return (len(inside) - 1) / max(inside[-1] - inside[0], 1e-12)


def _busy(
  simulation: simulation_lib.Simulation, window: tuple[float, float]
) -> dict[str, float]:
  secs = max(window[1] - window[0], 1e-12)
  busy = simulation.busy_secs().items()
  return {str(resource): each / secs for resource, each in busy}
