"""Every kind of strategy with ps, and a training loop for all of them."""

import tfps
import tfps.keras

STRATEGIES = {
  'coordinator': lambda c: tfps.ParameterServerStrategy(c),
  'sync': lambda c: tfps.ParameterServerStrategy(
    c, updates=tfps.updates.Sync()
  ),
  'bounded': lambda c: tfps.ParameterServerStrategy(
    c, updates=tfps.updates.BoundedStaleness(2)
  ),
  'accumulated': lambda c: tfps.ParameterServerStrategy(
    c, updates=tfps.updates.Accumulate(2)
  ),
  'unfused': lambda c: tfps.ParameterServerStrategy(
    c, wire=tfps.Wire(fuse=False)
  ),
  'prefetching': lambda c: tfps.ParameterServerStrategy(
    c, wire=tfps.Wire(prefetch=1)
  ),
  'between graphs': lambda c: tfps.BetweenGraphStrategy(c),
  'in graph': lambda c: tfps.replication.InGraphStrategy(c),
  'hybrid': lambda c: tfps.replication.HybridStrategy(c),
}
# Those that are a worker themselves, so that a cluster of one worker is used.
ALONE = ('between graphs', 'hybrid')


def train(strategy, step, dataset_fn, steps):
  """Trains by a strategy, four steps in each execution."""
  arguments = {'steps': steps, 'steps_per_execution': 4}
  if hasattr(strategy, 'train'):
    strategy.train(step, dataset_fn, **arguments)
    return
  with tfps.Coordinator(strategy, timeout_secs=60) as coordinator:
    coordinator.train(step, dataset_fn, **arguments)
