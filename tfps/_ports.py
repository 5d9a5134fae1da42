"""Ports for servers that will be started soon."""

import random
import threading

import portpicker

# The kernel gives outgoing connections ports from 32768 on, by default: one
# picked there may be gone by the time that a server has imported TensorFlow.
_RANGE = range(12_000, 32_000)
_picked: set[int] = set()
_lock = threading.Lock()


def pick() -> int:
  """A free port, another one each time."""
  chance = random.SystemRandom()  # shuffling all of them takes 50 ms
  with _lock:
    for port in (chance.choice(_RANGE) for _ in _RANGE):
      if port not in _picked and portpicker.is_port_free(port):
        _picked.add(port)
        return port
  return int(portpicker.pick_unused_port())


def is_free(port: int) -> bool:
  """Whether a server could listen there now."""
  return bool(portpicker.is_port_free(port))
