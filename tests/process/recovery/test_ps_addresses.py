"""A ps that does not come back is served by another, and goes home later."""

import pytest
import tensorflow as tf

from tests.support import losses
import tfps
from tfps import testing
from tfps._compat import handles
from tfps._utils import ports
from tfps.server import hosted_ps
from tfps.server import mailbox
from tfps.variables import partitioners

pytestmark = pytest.mark.tfps_cluster(workers=1, ps=2, processes=True)


def _has_values(address, variables):
  with mailbox.Mailbox(address) as opened:
    session = opened._session
    with session.graph.as_default(), tf.device(mailbox._DEVICE):
      found = [
        tf.raw_ops.VarIsInitializedOp(
          resource=handles.inner(variable).memory.handle(
            shape=variable.shape, dtype=variable.dtype
          )
        )
        for variable in variables
      ]
      assert found
      return any(session.run(found))


def test_a_ps_is_taken_over_and_goes_home(processes, tmp_path):
  events = losses.Events()
  strategy = tfps.ParameterServerStrategy(
    processes.cluster,
    partitioners.FixedShards(2),
    recovery=tfps.Recovery(
      tmp_path, every_secs=0.5, take_over_secs=0.5, on_event=events
    ),
  )
  with strategy.scope():
    count = tf.Variable(0, dtype=tf.int64, trainable=False)
    table = tf.Variable(tf.zeros([4, 2]))

  def lose_and_find():
    processes.kill('ps', 0)
    events.wait_for('back', 'ps:0', after=[0])
    processes.restart('ps', 1)  # which served both
    events.wait_for('back', 'ps:0', after=[1])
    processes.start('ps', 0)
    events.wait_for('back', 'ps:0', after=[2])

  def step(batch):
    count.assign_add(1)
    for shard in table.variables:
      shard.assign_add(tf.ones(shard.shape))

  with tfps.Coordinator(strategy, timeout_secs=120) as coordinator:
    steps = losses.train_while(coordinator, step, lose_and_find)
    assert count.numpy() == steps
    values = tf.concat([shard.read_value() for shard in table.variables], 0)
    assert set(values.numpy().ravel()) == {steps}
    moves = [event.tasks for event in events.of('moved')]
    assert moves[0] == moves[-1] == ('ps:0',)
    assert 'ps:1 serves ps:0, too, at localhost:' in processes.log('ps', 1)
    ps, other = (tfps.Task('ps', index) for index in range(2))
    home = processes.cluster.address(ps)
    host = hosted_ps.find(ps, {other: processes.cluster.address(other)})
    on_ps = [
      v for v in (count, *table.variables) if 'ps/replica:0/task:0' in v.device
    ]
    assert [_has_values(home, on_ps), _has_values(host, on_ps)] == [True, False]
    # Each is where it was: either may be lost, and takes nobody with it.
    processes.restart('ps', 1)
    assert coordinator.surviving(lambda: int(count.numpy())) == steps


def _counts(strategy):
  """Counts on two ps, and a step that adds one to each."""
  with strategy.scope():
    counts = [tf.Variable(0, dtype=tf.int64, name=name) for name in 'ab']
  return counts, lambda batch: losses.add_one(counts)


def _train(strategy, step, steps):
  """Trains to so many steps; gives what survives the loss of a ps."""
  if isinstance(strategy, tfps.BetweenGraphStrategy):
    strategy.train(step, losses.ones, steps=steps)
    return strategy.surviving
  coordinator = tfps.Coordinator(strategy, timeout_secs=120)
  coordinator.train(step, losses.ones, steps=steps)
  return coordinator.surviving


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  'kind', [tfps.ParameterServerStrategy, tfps.BetweenGraphStrategy]
)
def test_who_comes_again_finds_tasks_where_they_are_by_then(
  processes, tmp_path, kind
):
  def connected():
    return kind(
      processes.cluster,
      recovery=tfps.Recovery(tmp_path, replicas=1, take_over_secs=0.1),
    )

  def count(strategy, steps):
    counts, step = _counts(strategy)
    surviving = _train(strategy, step, steps)
    processes.kill('ps', 1)
    assert surviving(lambda: losses.values(counts)) == {steps}
    assert list(strategy.guard.copies.address_book.moved) == [
      tfps.Task('ps', 1)
    ]
    strategy.close()

  for steps in (10, 20):
    count(connected(), steps)  # ps:1 is served by ps:0 as it leaves
    processes.heal()


def test_a_process_may_be_a_worker_again(processes):
  addresses = {
    'ps': dict(processes.cluster.jobs['ps']),
    'worker': {0: f'localhost:{ports.pick()}'},
  }

  def add_one():
    cluster = tfps.Cluster(addresses, tfps.Task('worker', 0))
    strategy = tfps.BetweenGraphStrategy(cluster)
    with strategy.scope():
      count = tf.Variable(0, dtype=tf.int64, name='count')
    tf.function(lambda: count.assign_add(1))()
    strategy.close()
    return int(count.numpy())

  assert [add_one() for _ in range(2)] == [1, 2]  # they are on the ps


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  'kind', [tfps.ParameterServerStrategy, tfps.BetweenGraphStrategy]
)
def test_a_ps_comes_back_at_another_address(tmp_path, kind):
  with testing.ProcessCluster(1, 2) as processes:
    listed = processes.cluster
    events = losses.Events()
    strategy = kind(
      listed,
      recovery=tfps.Recovery(
        tmp_path, replicas=1, take_over_secs=120, on_event=events
      ),
    )
    counts, step = _counts(strategy)
    surviving = _train(strategy, step, 20)
    processes.kill('ps', 1)
    processes.start('ps', 1, elsewhere=True)
    assert (
      processes.cluster.address(tfps.Task('ps', 1)) not in listed.tf_config()
    )

    assert surviving(lambda: losses.values(counts)) == {20}
    _train(strategy, step, 30)
    assert surviving(lambda: losses.values(counts)) == {30}
    assert events.count('moved', 'ps:1') == [1]
    strategy.close()  # which tells the ps, too, where it is now
    assert processes.wait('ps', 1, timeout_secs=60) == 0


@pytest.mark.exhaustive
def test_a_ps_that_is_hosted_goes_home_to_another_address(tmp_path):
  with testing.ProcessCluster(1, 2) as processes:
    events = losses.Events()
    strategy = tfps.ParameterServerStrategy(
      processes.cluster,
      recovery=tfps.Recovery(tmp_path, replicas=1, on_event=events),
    )
    counts, step = _counts(strategy)
    surviving = _train(strategy, step, 20)
    processes.kill('ps', 1)
    assert surviving(lambda: losses.values(counts)) == {20}  # on ps:0
    processes.start('ps', 1, elsewhere=True)
    events.wait_for('moved', 'ps:1', after=[1])
    processes.kill('ps', 0)
    processes.start('ps', 0)
    assert surviving(lambda: losses.values(counts)) == {20}
    strategy.close()
