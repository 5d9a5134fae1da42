"""Events of tasks, as TensorFlow's profiler records them."""

from tfps.monitor import timeline

_STEP = 7


def sent(to, node, at, *, thread=0, step=_STEP):
  """Returns a send of ps:0 to another task, within a run of a step."""
  job, index = to.split(':')
  key = (
    '/job:ps/replica:0/task:0/device:CPU:0;12ab;'
    f'/job:{job}/replica:0/task:{index}/device:CPU:0;edge;0:0'
  )
  return [
    timeline.Event(thread, 'ExecutorState::Process', at - 1, 5, {'id': step}),
    timeline.Event(thread, f'{node}:_Send', at, 1, {'key': key}),
  ]


def received(node, at, *, step=_STEP):
  """Returns the end of a receipt."""
  args = {'name': node, 'kernel_type': '_Recv', 'step_id': step}
  name = 'ExecutorState::ProcessAsync::Done'
  return timeline.Event(0, name, at, 1, args)


def operation(kind, at, until, *, thread=1):
  """Returns an operation, within a run of a step in a thread."""
  secs = until - at
  return [
    timeline.Event(thread, 'ExecutorState::Process', at, secs, {'id': _STEP}),
    timeline.Event(thread, f'node/_1:{kind}', at, secs, {}),
  ]


def waited(kind, at, until, *, step=_STEP):
  """Returns both ends of an operation that waits without a thread."""
  args = {'name': 'wait', 'kernel_type': kind, 'step_id': step}
  prefix = 'ExecutorState::ProcessAsync'
  return [
    timeline.Event(0, f'{prefix}::Start', at, 1, args),
    timeline.Event(0, f'{prefix}::Done', until - 1, 1, args),
  ]


def profile(*events, host='one'):
  """Returns the profile of a task."""
  return timeline.Profile(host, {0: 'thread'}, events)
