"""A discrete-event simulation of servers and of flows over shared links.

Events are the completion of work and the arrival of messages. Between events
the rates of flows are constant.
"""

import collections
from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Mapping
from collections.abc import Sequence
import heapq
import itertools

import numpy as np

from tfps.plan import fluid

Then = Callable[[], None]

_TOLERANCE = 1e-5  # seconds; events so close are simultaneous


class Simulation:
  """Runs events in the order of simulated time.

  Args:
    rates: rates of the links, in bytes per second.
    paths: the links that each flow passes, by the flow's name.
    max_rates: maximum rates of flows, in bytes per second; by default links
      alone limit them.
    num_cpus: how many servers may work at a time; None for no limit.

  Attributes:
    now: simulated seconds since the start.
  """

  def __init__(
    self,
    rates: Mapping[Hashable, float],
    paths: Mapping[Hashable, Sequence[Hashable]],
    *,
    max_rates: Mapping[Hashable, float] | None = None,
    num_cpus: int | None = None,
  ) -> None:
    self.now = 0.0
    self._links = list(rates)
    numbers = {link: i for i, link in enumerate(self._links)}
    self._flows = {flow: i for i, flow in enumerate(paths)}
    indices = [[numbers[link] for link in path] for path in paths.values()]
    self._network = fluid.Network(
      list(rates.values()),
      indices,
      [(max_rates or {}).get(flow, np.inf) for flow in paths],
    )
    self._passes = np.zeros([len(self._links), len(indices)])
    for flow, path in enumerate(indices):
      self._passes[path, flow] = 1
    self._capacity = np.array(list(rates.values()), np.float64)
    # Remaining bytes of each flow's message; infinite if it has none.
    self._left = np.full(len(indices), np.inf)
    self._thens: dict[int, Then] = {}
    self._waiting: list[collections.deque[tuple[float, Then]]] = [
      collections.deque() for _ in indices
    ]
    self._rates = np.zeros(len(indices))
    self._is_changed = False
    self._events: list[tuple[float, int, Then]] = []
    self._ids = itertools.count()
    self._free_at: dict[Hashable, float] = collections.defaultdict(float)
    self._busy: dict[Hashable, float] = collections.defaultdict(float)
    self._sent = np.zeros(len(indices))
    self._cpus = None if num_cpus is None else [0.0] * num_cpus
    self._stopped = False

  def at(self, secs: float, then: Then) -> None:
    """Schedules a call.

    Args:
      secs: delay from now.
      then: the function to call.
    """
    event = (self.now + secs, next(self._ids), then)
    heapq.heappush(self._events, event)

  def work(self, server: Hashable, secs: float, then: Then) -> None:
    """Queues work on a server.

    Args:
      server: name of the server.
      secs: seconds that the work takes.
      then: called once it is done.
    """
    start = max(self.now, self._free_at[server])
    if self._cpus is not None:
      start = max(start, heapq.heappop(self._cpus))
      heapq.heappush(self._cpus, start + secs)
    self._free_at[server] = start + secs
    self._busy[server] += secs
    self.at(start + secs - self.now, then)

  def send(self, flow: Hashable, num_bytes: float, then: Then) -> None:
    """Sends a message over a flow, after its earlier messages.

    Args:
      flow: name of the flow.
      num_bytes: size of the message.
      then: called once it has arrived.
    """
    index = self._flows[flow]
    if num_bytes <= 0:
      self.at(0.0, then)
      return
    if index in self._thens:
      self._waiting[index].append((num_bytes, then))
    else:
      self._left[index], self._thens[index] = num_bytes, then
      self._is_changed = True

  def stop(self) -> None:
    """Ends `run`."""
    self._stopped = True

  def run(self) -> None:
    """Runs until `stop` is called, or no events are left."""
    while not self._stopped:
      if self._is_changed:
        self._share()
      with np.errstate(divide='ignore', invalid='ignore'):
        ends = np.where(np.isinf(self._left), np.inf, self._left / self._rates)
      after = float(ends.min()) if ends.size else np.inf
      if self._events:
        after = min(after, max(0.0, self._events[0][0] - self.now))
      if not np.isfinite(after):
        return
      self._advance(after)
      for flow in np.flatnonzero(ends <= after + _TOLERANCE).tolist():
        self._arrive(flow)
      while self._events and self._events[0][0] <= self.now + _TOLERANCE:
        heapq.heappop(self._events)[2]()

  def reset(self) -> None:
    """Resets the busy times."""
    self._busy.clear()
    self._sent[:] = 0

  def busy_secs(self) -> dict[Hashable, float]:
    """Returns the busy seconds of servers, and of links at full rate."""
    sent = self._passes @ self._sent
    links = zip(self._links, (sent / self._capacity).tolist(), strict=True)
    return {**self._busy, **dict(links)}

  def _arrive(self, flow: int) -> None:
    then = self._thens.pop(flow)
    if self._waiting[flow]:
      # The next message has the same rate, as the set of active flows stays.
      self._left[flow], self._thens[flow] = self._waiting[flow].popleft()
    else:
      self._left[flow] = np.inf
      self._is_changed = True
    then()

  def _advance(self, secs: float) -> None:
    self.now += secs
    carried = self._rates * secs
    self._left -= carried
    self._sent += carried

  def _share(self) -> None:
    self._rates = self._network.share(~np.isinf(self._left))
    self._is_changed = False
