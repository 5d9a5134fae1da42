import socket
import subprocess
import sys
import time

import pytest

from benchmarks import report
from benchmarks import runner
from benchmarks import sides
from benchmarks import usage


def test_a_comparison_gives_the_median_ratio_and_its_spread():
  comparison = runner.Comparison('x', 'ms', ours=[1, 2, 4], stock=[3, 4, 4])
  assert comparison.ratios == [3.0, 2.0, 1.0]
  assert comparison.median_ratio == 2.0
  assert comparison.spread == (1.0, 3.0)
  assert '2.00 (1.00..3.00)' in report.as_text(comparison)


@pytest.mark.parametrize(('ours', 'stock'), [([], []), ([1], [1, 2])])
def test_rounds_that_do_not_match_are_refused(ours, stock):
  with pytest.raises(ValueError, match='cannot be compared'):
    runner.Comparison('x', 'ms', ours=ours, stock=stock)


def test_the_two_sides_take_turns_and_the_first_round_does_not_count():
  now = [0.0]
  turns = []

  def side(name: str, secs: float):
    def run() -> None:
      turns.append(name)
      now[0] += secs * (100 if len(turns) <= 2 else 1)

    return run

  comparison = runner.compare_times(
    'x',
    side('ours', 1.0),
    side('stock', 2.0),
    num_steps=10,
    num_rounds=3,
    clock=lambda: now[0],
  )
  assert turns == ['ours', 'stock'] * 4
  assert comparison.ours == pytest.approx([100.0] * 3)
  assert comparison.median_ratio == pytest.approx(2.0)


def test_bytes_are_counted_both_ways_at_the_ports_asked_for():
  with (
    socket.create_server(('localhost', 0)) as server,
    socket.create_server(('localhost', 0)) as other_server,
  ):
    port = server.getsockname()[1]
    with (
      socket.create_connection(('localhost', port)) as client,
      socket.create_connection(other_server.getsockname()) as other,
      server.accept()[0] as accepted,
    ):
      other.sendall(b'x' * 50)
      before = usage.bytes_at_ports({port})
      client.sendall(b'x' * 1000)
      accepted.recv(1000, socket.MSG_WAITALL)
      accepted.sendall(b'x' * 300)
      client.recv(300, socket.MSG_WAITALL)
      found = _wait_for(lambda: usage.bytes_at_ports({port}) - before, 1300)
  assert found == 1300


def _wait_for(count, expected: int, timeout_secs: float = 10.0) -> int:
  """The count, which is that of acknowledged bytes, once it is as expected."""
  deadline = time.monotonic() + timeout_secs
  while (found := count()) != expected and time.monotonic() < deadline:
    time.sleep(0.01)
  return found


def test_peak_memory_is_that_of_the_process():
  program = "x = b'x' * 100_000_000; del x; print(flush=True); input()"
  with subprocess.Popen(
    [sys.executable, '-c', program],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
  ) as process:
    process.stdout.readline()
    peak = usage.peak_megabytes(process.pid)
    process.stdin.close()
  assert 100 < peak < 150


def test_a_process_that_ends_instead_of_working_is_told():
  program = 'raise SystemExit("no such step")'
  with (
    sides.ProcessSide(lambda folder: ['-c', program]) as side,
    pytest.raises(RuntimeError, match=r'status 1:\nno such step'),
  ):
    side.run('step', 1)
