"""Presence at servers that are processes, to be frozen and killed."""

import pytest

import tfps
from tfps.cluster.spec import Task
from tfps.server import registration

_PS = Task('ps', 0)


def _presence(
  address: str, *, workers: tuple[str, ...] = ('localhost:2',)
) -> registration.Registration:
  cluster = tfps.Cluster({'ps': [address], 'worker': workers})
  return registration.Registration(
    cluster, Task('worker', 0), 'localhost:2', chief=True, servers=[_PS]
  )


@pytest.mark.tfps_cluster(processes=True)
def test_servers_that_do_not_answer_are_named(tfps_cluster):
  address = tfps_cluster.cluster.address(_PS)
  tfps_cluster.freeze('ps', 0)
  # On a busy machine time may run out before the probe's does.
  silent = f'ps:0 at {address} does not|ps:0: no answer in'
  with pytest.raises(tfps.UnreachableError, match=silent):
    _presence(address).start()
  tfps_cluster.kill('ps', 0)
  with pytest.raises(tfps.UnreachableError, match=f'ps:0 at {address} is unre'):
    _presence(address).start()


@pytest.mark.tfps_cluster(processes=True)
def test_a_strategy_in_another_cluster_is_told(tfps_cluster):
  known = tfps_cluster.cluster
  jobs = {job: dict(tasks) for job, tasks in known.jobs.items()}
  jobs['worker'][1] = jobs['worker'][0]
  jobs['worker'][0] = 'localhost:1'
  with pytest.raises(tfps.UnreachableError, match='is worker:0, not worker:1'):
    tfps.ParameterServerStrategy(
      tfps.Cluster(jobs, known.task), connect_timeout_secs=0.5
    )


@pytest.mark.tfps_cluster(ps=2, workers=1, processes=True)
def test_servers_that_are_not_told_are_named_unless_all_have_ended(
  tfps_cluster, caplog
):
  cluster = tfps_cluster.cluster
  presence = registration.Registration(
    cluster,
    Task('worker', 0),
    cluster.address(Task('worker', 0)),
    chief=True,
    servers=cluster.tasks('ps'),
  )
  for left in (1, 0):
    presence.start(without=[Task('ps', 0)] if left == 0 else ())
    tfps_cluster.kill('ps', 1 - left)
    presence.stop()
    assert ('could not notify' in caplog.text) == bool(left)
    caplog.clear()
