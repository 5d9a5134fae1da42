"""Environment variables that TensorFlow reads when it is first used.

A task that dies resets its connections. One that freezes, or is disconnected,
does not: calls to it would wait forever. With these settings of gRPC they fail
after about 11 seconds. (Servers refuse more frequent pings as too many.)

By default a process takes all memory of the GPUs that it sees. Tasks that share
a GPU need it to take what it uses.
"""

import os

# The number of threads that all servers of a process share.
THREADS_VARIABLE = 'TF_NUM_INTEROP_THREADS'

# Whether a process takes of a GPU's memory only what it uses.
GROWTH_VARIABLE = 'TF_FORCE_GPU_ALLOW_GROWTH'

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
  """Sets gRPC's options, and growth of GPU memory, unless they are set already.

  It must be called before this process connects to any other: TensorFlow reads
  gRPC's options once. The growth holds for GPUs that the process has not used
  yet.
  """
  os.environ.setdefault(_VARIABLE, ','.join(_OPTIONS))
  os.environ.setdefault(GROWTH_VARIABLE, 'true')
