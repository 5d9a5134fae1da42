"""What is to be predicted: a model, a cluster, its links, and how it trains."""

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
_MOST_PREFETCHED = 2
_MOST_TASKS = 30_000  # of a job


@dataclasses.dataclass(frozen=True)
class Links:
  """How fast the network is.

  Attributes:
    mbit_per_sec: the rate of each host's link, in each direction, in
      megabits (10^6) per second.
    rack_mbit_per_sec: that of each rack's link to the other racks; None if it
      is never the bottleneck.
    fabric_mbit_per_sec: what all hosts together can exchange at a time; None if
      that does not limit them. Where all hosts are processes of one machine, it
      is what the machine can move.
    connection_mbit_per_sec: what one connection carries at most, between one ps
      and one worker; None for no limit but the links'.
    overhead: the part by which it takes longer to send something than its bytes
      and the rate say: for headers, and because nothing fills a link entirely.
      By default 0.1, of which 0.06 are the headers of TCP in Ethernet frames of
      1,500 bytes, 1,538 on the link for 1,448.
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
    """What a link of a rate carries, the overhead left out."""
    return mbit_per_sec * 1e6 / 8 / (1 + self.overhead)


@dataclasses.dataclass(frozen=True)
class Costs:
  """What tasks take for what is neither computing nor sending.

  The defaults are about what docs/performance.md has for two cpus.

  Attributes:
    step_secs: seconds a step takes a worker besides: to start it, to read its
      batch, to call the ps.
    execution_secs: seconds an execution of several steps takes besides.
    message_secs: seconds from when a message could be sent until it is, beyond
      what the link takes.
    apply_bytes_per_sec: how many bytes of gradients a ps applies a second.
    codec_bytes_per_sec: how many bytes of values a task encodes, or decodes, a
      second, if there is a codec.
    shared_cpus: how many cpus all tasks share, as processes of one machine do;
      None if each has its own.
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
  """A training to be predicted.

  Attributes:
    model: what is trained.
    num_workers: how many workers.
    num_ps: how many ps.
    links: how fast the network is.
    costs: what tasks take besides.
    pull: the codec of parameters, as for `tfps.Wire`; None for none.
    push: the codec of gradients.
    prefetch: how many steps ahead parameters are read, as for `tfps.Wire`.
    mode: 'async', or 'sync' if all workers make each update together.
    backup_workers: in mode 'sync', how many workers an update does not wait
      for.
    by_host: in mode 'sync', whether the workers of a host push as one, as with
      `tfps.replication.InGraphStrategy`.
    compute_spread: by how much the times that steps take to compute differ:
      their standard deviation over their mean.
    steps_per_execution: how many steps a worker does at a time.
    steps_per_update: how many steps share a pull and a push, as with
      `tfps.updates.Accumulate` and `LocalSteps`.
    partitioner: how variables are cut, as for a strategy.
    placement: which ps gets which variable; by default `ByteBalanced()`.
    host_of: the host of a task such as 'ps:0'; those left out have one each.
    rack_of: the rack of each host that `host_of` names, or that is named after
      its task, such as 'ps:0'.
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
      if getattr(self, name) > _MOST_TASKS:
        raise ValueError(
          f'Job: {name} is {getattr(self, name)}. Give {_MOST_TASKS} at most.'
        )
    checks.whole('Job: steps_per_update', self.steps_per_update, at_least=1)
    checks.whole('Job: backup_workers', self.backup_workers, at_least=0)
    checks.positive('Job: compute_spread', self.compute_spread, or_zero=True)
    if self.mode not in MODES:
      raise ValueError(
        f'Job: mode is {self.mode!r}. Give one of {", ".join(MODES)}.'
      )
    if self.prefetch not in range(_MOST_PREFETCHED + 1):
      raise ValueError(
        f'Job: prefetch is {self.prefetch!r}. Give 0, 1 or {_MOST_PREFETCHED}.'
      )
    if self.mode == 'sync' and self.prefetch:
      raise ValueError(
        f'Job: prefetch is {self.prefetch}, but in mode sync each step sees '
        'all updates before it. Give 0.'
      )
    if self.backup_workers and self.mode != 'sync':
      raise ValueError(
        f'Job: backup_workers is {self.backup_workers}, but in mode '
        f'{self.mode} no update waits for others. Give 0, or mode sync.'
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
    """Its tasks, whose addresses name their hosts."""
    hosts = dict(self.host_of or {})
    addresses = {
      job: [
        f'{hosts.pop(f"{job}:{i}", f"{job}-{i}")}:{port + i}'
        for i in range(number)
      ]
      for job, number, port in (
        ('ps', self.num_ps, 1),
        ('worker', self.num_workers, _MOST_TASKS + 1),
      )
    }
    if hosts:
      raise ValueError(
        f'Job: host_of names {", ".join(map(repr, hosts))}, which there is not '
        f'among {self.num_ps} ps and {self.num_workers} workers. Name tasks '
        "such as 'ps:0'."
      )
    return spec_lib.Cluster(addresses, source='Job')

  @functools.cached_property
  def topology(self) -> topology_lib.Topology:
    """Where its tasks are."""
    return topology_lib.Topology.of(self.cluster, rack_of=self.rack_of)

  @functools.cached_property
  def pushers(self) -> dict[int, int]:
    """The workers that push, each with how many gradients it pushes as one."""
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
    """The bytes a second that a link carries; None if it limits nothing."""
    links = self.links
    of_kind = {'host': links.mbit_per_sec, 'rack': links.rack_mbit_per_sec}
    rate = of_kind[link.kind]
    return None if rate is None else links.bytes_per_sec(rate)
