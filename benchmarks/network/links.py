"""Shows that the network works: how fast links of several rates are.

For each rate it measures a plain TCP connection, and a small training with
every task on a host of its own.
"""

from collections.abc import Iterator
import json
import sys

from benchmarks import tables
from benchmarks.network import train
from benchmarks.network import transfer
from tfps import testing

_RATES = (100.0, 400.0, 1000.0, None)
_NUM_WORKERS = _NUM_PS = 2
_SECS_OF_TRANSFER = 0.5
_UNLIMITED_BYTES = 200_000_000
_FIRST_STEPS = 8
_NUM_STEPS = 24
_TIMEOUT_SECS = 600.0


def compare(*, quick: bool) -> Iterator[tables.Table]:
  """One table."""
  rates = _RATES[1:2] if quick else _RATES
  num_steps = _FIRST_STEPS if quick else _NUM_STEPS
  of_tcp = [_measure_tcp(rate) for rate in rates]
  trained = [_train(rate, num_steps) for rate in rates]
  yield tables.Table(
    'links',
    f'{train.NUM_BYTES / 1e6:g} MB of parameters on links of several rates',
    ('Mbit/s', 'of TCP', 'steps/s', 'MB/step by ps', 'MB/step by workers'),
    [
      [f'{rate or "no limit"}', f'{tcp:.0f}', *(f'{x:.3g}' for x in numbers)]
      for rate, tcp, numbers in zip(rates, of_tcp, trained, strict=True)
    ],
    tables.Bars('Mbit/s of TCP', of_tcp, rates, 'rate of the link'),
  )


def _measure_tcp(limit: float | None) -> float:
  num_bytes = (
    int(limit * 1e6 / 8 * _SECS_OF_TRANSFER) if limit else _UNLIMITED_BYTES
  )
  with testing.Network(2, limit) as network:
    return transfer.measure(network, 0, 1, num_bytes)


def _train(limit: float | None, num_steps: int) -> tuple[float, float, float]:
  """Steps a second, and megabytes that ps and workers send a step."""
  numbers = (str(_FIRST_STEPS), str(num_steps))
  with testing.ProcessCluster(
    _NUM_WORKERS,
    _NUM_PS,
    on_hosts=True,
    mbit_per_sec=limit,
    commands={'chief': [sys.executable, '-m', train.__name__, *numbers]},
    env={'TF_CPP_MIN_LOG_LEVEL': '2'},
  ) as cluster:
    status = cluster.wait('chief', 0, timeout_secs=_TIMEOUT_SECS)
    log = cluster.log('chief', 0)
    if status:
      raise RuntimeError(f'The chief ended with status {status}:\n{log}')
    by_ps, by_workers = (
      sum(cluster.traffic(job, i).sent for i in range(number))
      / (_FIRST_STEPS + num_steps)
      / 1e6
      for job, number in (('ps', _NUM_PS), ('worker', _NUM_WORKERS))
    )
  result = json.loads(log.splitlines()[-1])
  return num_steps / result['secs'], by_ps, by_workers
