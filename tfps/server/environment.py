"""How TensorFlow's connections find out that the other end is gone.

A task that dies resets its connections. One that freezes, or is cut off, does
not: calls to it would wait for ever. With these settings they fail after about
11 seconds. (More frequent pings are refused by servers as too many.)
"""

import os

# By which TensorFlow is told, before it is first used, how many threads all
# servers of a process share.
THREADS_VARIABLE = 'TF_NUM_INTEROP_THREADS'

ENOUGH_THREADS = 128  # for most clusters in one process; they cost nothing idle

_VARIABLE = 'TF_GRPC_DEFAULT_OPTIONS'
_OPTIONS = (
  'grpc.keepalive_time_ms=20000',
  'grpc.keepalive_timeout_ms=10000',
  'grpc.http2.ping_timeout_ms=10000',
  'grpc.min_reconnect_backoff_ms=1000',
  'grpc.max_reconnect_backoff_ms=1000',
  'grpc.initial_reconnect_backoff_ms=200',
)


def set_default() -> None:
  """To be called before this process connects to any other.

  What the environment says already is left as it is.
  """
  os.environ.setdefault(_VARIABLE, ','.join(_OPTIONS))
