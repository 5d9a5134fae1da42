"""Messages between tasks that functions exchange each time they are called."""

import contextlib

from tensorflow.core.protobuf import config_pb2
from tensorflow.python.eager import context

_RECEIVES = ('_Recv', '_HostRecv')


@contextlib.contextmanager
def counted():
  """Yields a list, to which functions that are first called within add.

  It gets, for each function that uses several tasks, its messages of a call:
  pairs of the sending and the receiving task, sorted. One in a loop is sent in
  each iteration.
  """
  found = []
  own = context.context()
  own.enable_graph_collection()
  try:
    yield found
    graphs = config_pb2.RunMetadata()
    graphs.CopyFrom(own.export_run_metadata())
  finally:
    own.disable_graph_collection()
  for function in graphs.function_graphs:
    messages = [
      (_task(node.attr['send_device']), _task(node.attr['recv_device']))
      for part in function.partition_graphs
      for node in part.node
      if node.op in _RECEIVES
    ]
    between = sorted(pair for pair in messages if pair[0] != pair[1])
    if between:
      found.append(between)


def _task(device):
  job, replica, task, *_ = device.s.decode().removeprefix('/').split('/')
  del replica
  return f'{job.removeprefix("job:")}:{task.removeprefix("task:")}'
