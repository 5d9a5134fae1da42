"""Trains alone in a network, whose loopback interface counts bytes as well.

Prints, as JSON, what the wire says and what the interface says for each way to
train, or 'denied' if this user may not make a network.
"""

import ctypes
import fcntl
import json
import os
import pathlib
import socket
import struct

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_NUM_STEPS = 60


def enter_a_network() -> bool:
  """Leaves the machine's network for one with a loopback interface alone."""
  unshare = ctypes.CDLL(None, use_errno=True).unshare
  flags = _CLONE_NEWNET | (_CLONE_NEWUSER if os.geteuid() else 0)
  if unshare(flags):
    return False
  with socket.socket() as any_socket:
    request = struct.pack('16sh14x', b'lo', _IFF_UP)
    fcntl.ioctl(any_socket, _SIOCSIFFLAGS, request)
  return True


def bytes_on_loopback() -> int:
  for line in pathlib.Path('/proc/net/dev').read_text().splitlines():
    name, _, counters = line.partition(':')
    if name.strip() == 'lo':
      return int(counters.split()[0])
  raise OSError('There is no loopback interface.')


def main() -> None:
  if not enter_a_network():
    print('denied')
    return
  import keras
  import tensorflow as tf

  import tfps

  def train(make_strategy, cluster, wire):
    strategy = make_strategy(cluster, wire=wire)
    with strategy.scope():
      model = keras.Sequential(
        [
          keras.layers.Input((8,), dtype='int32'),
          keras.layers.Embedding(3000, 256),
          keras.layers.Flatten(),
          keras.layers.Dense(100),
        ]
      )
      model.compile('sgd', 'mse', steps_per_execution=4)
    dataset = tf.data.Dataset.range(20 * _NUM_STEPS, output_type=tf.int32)
    dataset = dataset.map(lambda i: (tf.range(8) * 7 + i % 2000, [0.0]))
    dataset = dataset.batch(20)
    model.fit(dataset.take(4), verbose=0)
    before, begun = strategy.wire_report(), bytes_on_loopback()
    model.fit(dataset, verbose=0)
    report = strategy.wire_report()
    return {
      'steps': report.steps - before.steps,
      'wire': sum(report.pulled)
      + sum(report.pushed)
      - sum(before.pulled)
      - sum(before.pushed),
      'interface': bytes_on_loopback() - begun,
    }

  encoded = tfps.Wire(
    pull=tfps.codecs.BFloat16(), push=tfps.codecs.Int8(), prefetch=1
  )
  with tfps.testing.InProcessCluster(num_workers=1, num_ps=2) as cluster:
    found = {
      f'{make_strategy.__name__}, {wire}': train(
        make_strategy, cluster.cluster, wire
      )
      for make_strategy in (
        tfps.ParameterServerStrategy,
        tfps.BetweenGraphStrategy,
      )
      for wire in (tfps.Wire(fuse=True), encoded)
    }
  print(json.dumps(found), flush=True)


if __name__ == '__main__':
  main()
