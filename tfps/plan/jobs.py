"""The description of a job: model, cluster, links and training options."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
from typing import Any

from tfps.cluster import spec as spec_lib
from tfps.cluster import topology as topology_lib
from tfps.plan import checks
from tfps.plan import models
from tfps.variables import placement as placement_lib

MODES = ('async', 'sync')
_MAX_PREFETCH = 2
_MAX_TASKS = 30_000


@dataclasses.dataclass(frozen=True)
class Links:
  """The rates of the network, in megabits (10^6) per second.

  Attributes:
    mbit_per_sec: the rate of each host's link, in each direction.
    rack_mbit_per_sec: the rate of each rack's link to the other racks; None if
      it is never the bottleneck.
    fabric_mbit_per_sec: the total rate between all hosts; None for no limit. If
      all hosts are processes of one machine, it is the machine's total rate.
    connection_mbit_per_sec: the maximum rate of a connection between one ps and
      one worker; None for no limit.
    overhead: ratio by which a transfer takes longer than its bytes at the
      link's rate, for headers and imperfect utilization. Of the default 0.1,
      0.06 are TCP headers in Ethernet frames of 1,500 bytes: 1,538 bytes on the
      link for 1,448.

  Raises:
    ValueError: a rate is not positive, or the overhead is negative.
  """

  mbit_per_sec: float
  rack_mbit_per_sec: float | None = dataclasses.field(
    default=None, kw_only=True
  )
  fabric_mbit_per_sec: float | None = dataclasses.field(
    default=None, kw_only=True
  )
  connection_mbit_per_sec: float | None = dataclasses.field(
    default=None, kw_only=True
  )
  overhead: float = dataclasses.field(default=0.1, kw_only=True)

  def __post_init__(self) -> None:
    checks.positive('Links: mbit_per_sec', self.mbit_per_sec)
    for name in ('rack', 'fabric', 'connection'):
      value = getattr(self, f'{name}_mbit_per_sec')
      if value is not None:
        checks.positive(f'Links: {name}_mbit_per_sec', value)
    checks.positive('Links: overhead', self.overhead, or_zero=True)

  def bytes_per_sec(self, mbit_per_sec: float) -> float:
    """Returns the payload rate of a link in bytes per second.

    Args:
      mbit_per_sec: the link's rate.
    """
    return mbit_per_sec * 1e6 / 8 / (1 + self.overhead)


@dataclasses.dataclass(frozen=True)
class Costs:
  """Costs of tasks other than computing and sending.

  The defaults are close to the measurements on two cpus in docs/performance.md.

  Attributes:
    step_secs: additional seconds per step of a worker: to start it, to read its
      batch, to call the ps.
    execution_secs: additional seconds per execution of several steps.
    message_secs: latency of a message in seconds, beyond its transmission.
    apply_bytes_per_sec: bytes of gradients that a ps applies per second.
    codec_bytes_per_sec: bytes of values that a task encodes or decodes per
      second, if there is a codec.
    shared_cpus: number of cpus that all tasks share, as processes of one
      machine do; None if each task has its own.

  Raises:
    ValueError: a number is out of range.
  """

  step_secs: float = 0.5e-3
  execution_secs: float = 2e-3
  message_secs: float = 0.2e-3
  apply_bytes_per_sec: float = 2e9
  codec_bytes_per_sec: float = 5e9
  shared_cpus: int | None = None

  def __post_init__(self) -> None:
    for name in ('step_secs', 'execution_secs', 'message_secs'):
      checks.positive(f'Costs: {name}', getattr(self, name), or_zero=True)
    for name in ('apply_bytes_per_sec', 'codec_bytes_per_sec'):
      checks.positive(f'Costs: {name}', getattr(self, name))
    if self.shared_cpus is not None:
      checks.whole('Costs: shared_cpus', self.shared_cpus, at_least=1)


@dataclasses.dataclass(frozen=True)
class Job:
  """A training job to predict.

  Attributes:
    model: the model.
    num_workers: number of workers.
    num_ps: number of ps.
    links: the rates of the network.
    costs: the costs of tasks.
    pull: the codec of parameters, see `tfps.Wire`; None for none.
    push: the codec of gradients; None for none.
    prefetch: how many steps ahead parameters are read, see `tfps.Wire`.
    mode: 'async', or 'sync' if all workers make each update together.
    backup_workers: in mode 'sync', how many workers an update does not wait
      for.
    by_host: in mode 'sync', whether the workers of a host push as one, as with
      `tfps.replication.InGraphStrategy`.
    compute_spread: standard deviation of the steps' computing times over their
      mean.
    steps_per_execution: number of steps per execution of a worker.
    steps_per_update: number of steps that share a pull and a push, as with
      `tfps.updates.Accumulate` and `LocalSteps`.
    partitioner: the partitioner of variables, as for a strategy.
    placement: the placement policy; by default `ByteBalanced()`.
    host_of: the host of tasks such as 'ps:0'; each task that it leaves out has
      its own host.
    rack_of: the rack of each host that `host_of` names, or that is named after
      its task, such as 'ps-0'.

  Raises:
    ValueError: an option is invalid, or does not fit the others.
  """

  model: models.Model
  num_workers: int
  num_ps: int
  links: Links
  costs: Costs = dataclasses.field(default_factory=Costs, kw_only=True)
  pull: Any = dataclasses.field(default=None, kw_only=True)
  push: Any = dataclasses.field(default=None, kw_only=True)
  prefetch: int = dataclasses.field(default=0, kw_only=True)
  mode: str = dataclasses.field(default='async', kw_only=True)
  backup_workers: int = dataclasses.field(default=0, kw_only=True)
  by_host: bool = dataclasses.field(default=False, kw_only=True)
  compute_spread: float = dataclasses.field(default=0.0, kw_only=True)
  steps_per_execution: int = dataclasses.field(default=8, kw_only=True)
  steps_per_update: int = dataclasses.field(default=1, kw_only=True)
  partitioner: Callable[..., Sequence[int]] | None = dataclasses.field(
    default=None, kw_only=True
  )
  placement: placement_lib.Placement = dataclasses.field(
    default_factory=placement_lib.ByteBalanced, kw_only=True
  )
  host_of: Mapping[str, str] | None = dataclasses.field(
    default=None, kw_only=True
  )
  rack_of: Mapping[str, str] | None = dataclasses.field(
    default=None, kw_only=True
  )

  def __post_init__(self) -> None:
    for name in ('num_workers', 'num_ps', 'steps_per_execution'):
      checks.whole(f'Job: {name}', getattr(self, name), at_least=1)
      if getattr(self, name) > _MAX_TASKS:
        raise ValueError(
          f'Job: {name} is {getattr(self, name)}. Give {_MAX_TASKS} at most.'
        )
    checks.whole('Job: steps_per_update', self.steps_per_update, at_least=1)
    checks.whole('Job: backup_workers', self.backup_workers, at_least=0)
    checks.positive('Job: compute_spread', self.compute_spread, or_zero=True)
    if self.mode not in MODES:
      raise ValueError(
        f'Job: mode is {self.mode!r}. Give one of {", ".join(MODES)}.'
      )
    if self.prefetch not in range(_MAX_PREFETCH + 1):
      raise ValueError(
        f'Job: prefetch is {self.prefetch!r}. Give 0, 1 or {_MAX_PREFETCH}.'
      )
    if self.mode == 'sync' and self.prefetch:
      raise ValueError(
        f'Job: prefetch is {self.prefetch}, but in mode sync each step sees '
        'all updates before it. Give 0.'
      )
    if self.backup_workers and self.mode != 'sync':
      raise ValueError(
        f'Job: backup_workers is {self.backup_workers}, but in mode '
        f'{self.mode} updates do not wait for workers. Give 0, or mode sync.'
      )
    if self.by_host and (self.mode != 'sync' or self.backup_workers):
      raise ValueError(
        f'Job: by_host is {self.by_host} with mode {self.mode} and '
        f'{self.backup_workers} backup_workers, but a host waits for all of '
        'its workers. Give mode sync and no backups, or leave it out.'
      )
    if self.backup_workers >= self.num_workers:
      raise ValueError(
        f'Job: backup_workers is {self.backup_workers} of {self.num_workers} '
        'workers. Give fewer.'
      )
    if self.pull is not None and not self.pull.for_pulls:
      raise ValueError(
        f'Job: pull is {self.pull}, which cannot be: {self.pull.why_not}. '
        'Use it as push.'
      )

  @functools.cached_property
  def cluster(self) -> spec_lib.Cluster:
    """The cluster; the tasks' addresses name their hosts."""
    hosts = dict(self.host_of or {})
    addresses = {
      job: [
        f'{hosts.pop(f"{job}:{i}", f"{job}-{i}")}:{port + i}'
        for i in range(number)
      ]
      for job, number, port in (
        ('ps', self.num_ps, 1),
        ('worker', self.num_workers, _MAX_TASKS + 1),
      )
    }
    if hosts:
      raise ValueError(
        f'Job: host_of names {", ".join(map(repr, hosts))}, not one of the '
        f'{self.num_ps} ps and {self.num_workers} workers. Name tasks such as '
        "'ps:0'."
      )
    return spec_lib.Cluster(addresses, source='Job')

  @functools.cached_property
  def topology(self) -> topology_lib.Topology:
    """The hosts and racks of the tasks."""
    return topology_lib.Topology.of(self.cluster, rack_of=self.rack_of)

  @functools.cached_property
  def pushers(self) -> dict[int, int]:
    """The number of workers whose gradients a worker pushes, by its index."""
    first: dict[str, int] = {}
    found: dict[int, int] = {}
    for worker in self.topology.tasks('worker'):
      host = self.topology.hosts[worker]
      own = (
        first.setdefault(host, worker.index) if self.by_host else worker.index
      )
      found[own] = found.get(own, 0) + 1
    return found

  def rate(self, link: topology_lib.Link) -> float | None:
    """Returns a link's bytes per second; None if it is not a limit.

    Args:
      link: a link of `topology`.
    """
    links = self.links
    of_kind = {'host': links.mbit_per_sec, 'rack': links.rack_mbit_per_sec}
    rate = of_kind[link.kind]
    return None if rate is None else links.bytes_per_sec(rate)
