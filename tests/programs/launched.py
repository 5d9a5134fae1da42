"""What a launched task does, by its words: quick, without TensorFlow.

`launched.py JOB=DEED ...`: a task does the deed of its job; 0 if it has none.
"""

import json
import os
import signal
import subprocess
import sys
import time


def _sleep():
  print('sleeping', os.getpid(), flush=True)
  time.sleep(600)


def _sleep_deaf():
  signal.signal(signal.SIGTERM, signal.SIG_IGN)
  _sleep()


def _sleep_with_child():
  command = [sys.executable, '-c', 'import time; time.sleep(600)']
  print('child', subprocess.Popen(command).pid, flush=True)
  _sleep()


def _tell():
  config = json.loads(os.environ['TF_CONFIG'])
  facts = {
    'task': config['task'],
    'cluster': config['cluster'],
    'args': sys.argv[1:],
    'mark': os.environ.get('MARK'),
    'tmp': os.environ.get('TMPDIR'),  # which belongs to a login
  }
  print(json.dumps(facts), flush=True)


def _fail():
  sys.exit(7)


def main():
  job = json.loads(os.environ['TF_CONFIG'])['task']['type']
  deeds = dict(word.split('=') for word in sys.argv[1:] if '=' in word)
  {
    'deaf': _sleep_deaf,
    'fail': _fail,
    'sleep': _sleep,
    'sleep_with_child': _sleep_with_child,
    'tell': _tell,
  }[deeds.get(job, 'tell')]()


if __name__ == '__main__':
  main()
