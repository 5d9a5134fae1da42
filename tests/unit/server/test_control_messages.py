from tfps.cluster.spec import Task
from tfps.server import control_messages


def test_a_new_listener_stops_the_last():
  first, second = (
    control_messages.Listener(Task('localhost', 0), lambda task: None, print)
    for _ in range(2)
  )
  assert not first._thread.is_alive()
  assert second._thread.is_alive()
  second.stop()
  assert not second._thread.is_alive()
