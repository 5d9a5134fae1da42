"""Observations of a task that serves, over its mailbox."""

import threading

import tfps
from tfps.cluster.spec import Task
from tfps.server import hosted_ps
from tfps.server import messages
from tfps.server import observation
from tfps.server import service as service_lib

_PS, _CHIEF = Task('ps', 0), Task('chief', 0)
_NOBODY = 'localhost:1'


def _say(mailbox, *, done):
  kind = messages.Done if done else messages.Hello
  mailbox.put(kind(_CHIEF, _NOBODY, chief=True).to_json())


def test_a_task_tells_what_it_does_and_whom_it_knows(ps_server, mailbox):
  cluster = tfps.Cluster({'ps': [ps_server.address], 'worker': {}}, _PS)
  service = service_lib.Service(
    _PS,
    ps_server.address,
    cluster,
    hosted_ps.HostedTasks(lambda task: ''),
    timeout_secs=None,
    grace_secs=1,
  )
  thread = threading.Thread(target=service.run, daemon=True)
  thread.start()
  _say(mailbox, done=False)
  observed, addresses = observation.observe_job(
    {_PS: ps_server.address}, has_stacks=True, timeout_secs=20
  )
  assert addresses == {_PS: ps_server.address, _CHIEF: _NOBODY}
  assert observed[_CHIEF] == 'is unreachable'
  found = observed[_PS]
  assert 'test_a_task_tells_what_it_does_and_whom_it_knows' in found.stacks
  names = [metric['name'] for metric in found.metrics]
  assert 'tfps_memory_bytes' in names
  own = observation.of_process(has_stacks=False)
  observed, _ = observation.observe_job(
    {_PS: ps_server.address}, timeout_secs=20, here={_CHIEF: own}
  )
  assert observed[_CHIEF] is own
  without = observation.observe(_PS, ps_server.address, timeout_secs=20)
  assert without.stacks == ''
  _say(mailbox, done=True)
  thread.join(timeout=30)
  assert not thread.is_alive()


def test_a_server_that_nobody_serves_gives_no_answer(ps_server, mailbox):
  found = observation.observe(_PS, ps_server.address, timeout_secs=0.5)
  assert 'answers probes, but not the request' in found
  assert len(mailbox.take()) == 1
