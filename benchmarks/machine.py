"""On what, and beside what, a benchmark ran."""

import dataclasses
from importlib import metadata
import os
import pathlib
import platform
import time

_PACKAGES = ('tensorflow', 'keras')
_BUSY_SECS = 2.0


@dataclasses.dataclass(frozen=True)
class Machine:
  """A machine before a benchmark.

  Attributes:
    cpus: how many it has.
    cpu: of what kind.
    gigabytes: of memory.
    load: the average of the last minute.
    busy: how many of the cpus other programs kept busy.
    platform: its operating system.
    python: the interpreter's version.
    packages: the versions of those that matter, by name.
  """

  cpus: int
  cpu: str
  gigabytes: float
  load: float
  busy: float
  platform: str
  python: str
  packages: dict[str, str]

  @classmethod
  def now(cls, secs: float = _BUSY_SECS) -> 'Machine':
    """Looks at this machine for so long."""
    load = os.getloadavg()[0]
    start = cpu_secs()
    time.sleep(secs)
    return cls(
      cpus=os.cpu_count() or 0,
      cpu=_cpu(),
      gigabytes=os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9,
      load=load,
      busy=(cpu_secs() - start) / secs,
      platform=platform.platform(),
      python=platform.python_version(),
      packages={name: metadata.version(name) for name in _PACKAGES},
    )


def cpu_secs() -> float:
  """For how long the cpus, taken together, have been busy."""
  fields = pathlib.Path('/proc/stat').read_text().splitlines()[0].split()[1:]
  user, nice, system, _, _, irq, softirq, *_ = map(int, fields)
  ticks = user + nice + system + irq + softirq
  return ticks / os.sysconf('SC_CLK_TCK')


def _cpu() -> str:
  for line in pathlib.Path('/proc/cpuinfo').read_text().splitlines():
    if line.startswith('model name'):
      return line.partition(':')[2].strip()
  return platform.machine()
