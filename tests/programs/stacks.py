"""Prints how often it found its stacks while others change and begin threads.

Garbage is collected at each chance, and what is collected lets them go on.
"""

import gc
import os
import sys
import threading
import time

from tfps.monitor import activities

_TIMES = 10


def _go_deeper(depth: int) -> int:
  return depth and _go_deeper(depth - 1) + 1


def _change() -> None:
  while True:
    for depth in range(30):
      _go_deeper(depth)


def _begin() -> None:
  while True:
    thread = threading.Thread(target=_go_deeper, args=(9,))
    thread.start()
    thread.join()


def _let_others_go_on(phase: str, info: object) -> None:
  if threading.current_thread() is threading.main_thread():
    time.sleep(0)


def main() -> None:
  for target in (_change, _begin, _begin):
    threading.Thread(target=target, daemon=True).start()
  sys.setswitchinterval(1e-4)
  gc.callbacks.append(_let_others_go_on)
  gc.set_threshold(1, 1000, 1000)
  found = [activities.stacks() for _ in range(_TIMES)]
  gc.set_threshold(0)
  print(sum('_change' in stacks for stacks in found), flush=True)


if __name__ == '__main__':
  main()
  os._exit(0)
