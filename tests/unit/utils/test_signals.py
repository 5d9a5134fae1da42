import os
import queue
import signal
import subprocess
import sys

from tfps._utils import signals

_NUM_SIGNALS = 10_000
_SENDER = """
import os, random, signal, sys, time
pid = int(sys.argv[1])
while sys.stdin.buffer.read(1):
  at = time.perf_counter() + random.random() * 60e-6
  while time.perf_counter() < at:
    pass
  os.kill(pid, signal.SIGUSR1)
"""


def test_no_signal_comes_late():
  """Each comes about when a wait for it begins."""
  events = queue.SimpleQueue()
  with (
    signals.reported([signal.SIGUSR1], events.put),
    subprocess.Popen(
      [sys.executable, '-c', _SENDER, str(os.getpid())], stdin=subprocess.PIPE
    ) as sender,
  ):
    for _ in range(_NUM_SIGNALS):
      sender.stdin.write(b'.')
      sender.stdin.flush()
      assert events.get(timeout=30) == signal.SIGUSR1
  assert events.empty()


def test_only_those_asked_for_are_told():
  events = queue.SimpleQueue()
  heard = []
  earlier = signal.signal(signal.SIGUSR2, lambda *_: heard.append('other'))
  try:
    with signals.reported([signal.SIGUSR1], events.put):
      signal.raise_signal(signal.SIGUSR2)
      signal.raise_signal(signal.SIGUSR1)
      assert events.get(timeout=30) == signal.SIGUSR1
    assert heard == ['other']
    assert events.empty()
  finally:
    signal.signal(signal.SIGUSR2, earlier)


def test_the_program_has_its_signals_back():
  heard = []
  earlier = signal.signal(signal.SIGUSR1, lambda *_: heard.append('its own'))
  try:
    with signals.reported([signal.SIGUSR1], lambda _: heard.append('told')):
      pass
    signal.raise_signal(signal.SIGUSR1)
    assert heard == ['its own']
    assert signal.set_wakeup_fd(-1) == -1
  finally:
    signal.signal(signal.SIGUSR1, earlier)
