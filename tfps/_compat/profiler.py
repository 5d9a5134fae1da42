"""Profiles of the processes of TensorFlow servers, over the servers' own port.

TensorFlow's profiler is one of the services of each `tf.distribute.Server`.
TensorFlow's client of it leaves the profile on the server's disk; asked by a
call of its own, the server returns it. Messages and fields are those of
TensorFlow's `profiler_service.proto`.
"""

from collections.abc import Iterator
from typing import Any

from tensorflow.tsl.profiler.protobuf import profiler_options_pb2
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from tfps._compat import rpc
from tfps.monitor import timeline

_METHOD = '/tensorflow.ProfilerService/Profile'
_REQUEST = (
  ('duration_ms', 1, rpc.KINDS.TYPE_UINT64),
  ('opts', 4, rpc.KINDS.TYPE_BYTES),
  ('emit_xspace', 9, rpc.KINDS.TYPE_BOOL),
)
_RESPONSE = (('xspace', 8, rpc.KINDS.TYPE_BYTES),)
_ENVIRONMENT = 'Task Environment'
_START = 'profile_start_time'
_HOST_TRACER_LEVEL = 2  # operations and remote calls


def profile(
  address: str, *, secs: float, timeout_secs: float
) -> timeline.Profile:
  """Profiles the process of a server.

  Args:
    address: where the server listens, as 'host:port'.
    secs: how long.
    timeout_secs: how long to wait for the profile besides.

  Raises:
    grpc.RpcError: the call failed, or another profile is being made.
  """
  duration_ms = max(1, round(1000 * secs))
  options = profiler_options_pb2.ProfileOptions(
    version=1,
    host_tracer_level=_HOST_TRACER_LEVEL,
    device_tracer_level=1,
    duration_ms=duration_ms,
  )
  request = rpc.message_class('ProfileRequest', _REQUEST)(
    duration_ms=duration_ms, opts=options.SerializeToString(), emit_xspace=True
  )
  response = rpc.call(
    address,
    _METHOD,
    request.SerializeToString(),
    timeout_secs=secs + timeout_secs,
  )
  message = rpc.message_class('ProfileResponse', _RESPONSE)
  return parse(message.FromString(response).xspace)


def parse(xspace: bytes) -> timeline.Profile:
  """Returns the profile that a serialized `XSpace` has."""
  space = xplane_pb2.XSpace.FromString(xspace)
  start_ns = 0
  for plane in space.planes:
    if plane.name == _ENVIRONMENT:
      start_ns = _values(plane, plane.stats).get(_START, 0)
  threads: dict[int, str] = {}
  events: list[timeline.Event] = []
  for plane in space.planes:
    for line in plane.lines:
      number = len(threads)
      threads[number] = line.display_name or line.name
      events += _events(plane, line, start_ns, number)
  host = space.hostnames[0] if space.hostnames else ''
  return timeline.Profile(host, threads, events, xspace)


def _events(
  plane: Any, line: Any, start_ns: int, thread: int
) -> Iterator[timeline.Event]:
  # The times of a line are nanoseconds since the profile began, those of an
  # event picoseconds since the line's.
  for event in line.events:
    metadata = plane.event_metadata[event.metadata_id]
    yield timeline.Event(
      thread=thread,
      name=metadata.name,  # the other may be the type alone
      start_ns=start_ns + line.timestamp_ns + event.offset_ps / 1000,
      duration_ns=event.duration_ps / 1000,
      args=_values(plane, event.stats),
    )


def _values(plane: Any, stats: Any) -> dict[str, Any]:
  found = {}
  for stat in stats:
    kind = stat.WhichOneof('value')
    value = getattr(stat, kind) if kind else None
    if kind == 'ref_value':
      value = plane.stat_metadata[value].name
    elif isinstance(value, bytes):
      value = f'{len(value)} bytes'
    found[plane.stat_metadata[stat.metadata_id].name] = value
  return found
