"""Messages between tasks that functions exchange each time they are called."""

import contextlib

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow.core.util import event_pb2

_RECEIVES = ('_Recv', '_HostRecv')


@contextlib.contextmanager
def counted(directory):
  """Yields a list, to which functions that are first called within add.

  It gets, for each function that uses several tasks, its messages of a call:
  pairs of the sending and the receiving task, sorted. One in a loop is sent in
  each iteration.

  Args:
    directory: for a file of TensorFlow's.
  """
  found = []
  tf.summary.trace_on(graph=True)
  try:
    yield found
    with tf.summary.create_file_writer(str(directory)).as_default():
      tf.summary.trace_export('graphs', step=0)
  finally:
    tf.summary.trace_off()
  for parts in _functions(directory):
    messages = [
      (_task(node.attr['send_device']), _task(node.attr['recv_device']))
      for part in parts
      for node in part.node
      if node.op in _RECEIVES
    ]
    between = sorted(pair for pair in messages if pair[0] != pair[1])
    if between:
      found.append(between)


def _functions(directory):
  """The graphs of each function, one for each task.

  TensorFlow writes down the graphs that it has so far whenever an operation has
  ended in any thread: those of one function can be in several records, of which
  only the first has the graph that they were made from.
  """
  functions = []
  for record in _records(directory):
    if record.pre_optimization_graph.node or not functions:
      functions.append([])
    functions[-1].extend(record.partition_graphs)
  return functions


def _records(directory):
  (path,) = directory.glob('events.*')
  for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
    for value in event_pb2.Event.FromString(record).summary.value:
      if value.tag == 'graphs':
        (content,) = value.tensor.string_val
        yield from config_pb2.RunMetadata.FromString(content).function_graphs


def _task(device):
  job, replica, task, *_ = device.s.decode().removeprefix('/').split('/')
  del replica
  return f'{job.removeprefix("job:")}:{task.removeprefix("task:")}'
