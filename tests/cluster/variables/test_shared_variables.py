import pytest
import tensorflow as tf

import tfps
from tfps.variables import shared_variables

pytestmark = pytest.mark.tfps_cluster(workers=1, ps=2)
_DEVICES = [f'/job:ps/replica:0/task:{i}/device:CPU:0' for i in range(2)]


@pytest.fixture
def connected(tfps_cluster):
  tfps.BetweenGraphStrategy(tfps_cluster.cluster)


def _program(*, is_chief: bool) -> shared_variables.SharedVariables:
  return shared_variables.SharedVariables(
    is_chief=is_chief, timeout_secs=0.2, chief='worker:0'
  )


def _make(program: shared_variables.SharedVariables, **kwargs):
  with tf.device(_DEVICES[kwargs.pop('ps', 0)]):
    return program.make(**{'initial_value': [1.0], 'name': 'v', **kwargs})


@pytest.mark.usefixtures('connected')
def test_others_wait_for_the_chief():
  with pytest.raises(
    tfps.DeadlineError, match=r"After 0\.2 seconds, worker:0 has not .*'v'"
  ):
    _make(_program(is_chief=False))
  _make(_program(is_chief=True), initial_value=[5.0])
  assert _make(_program(is_chief=False)).numpy() == [5.0]


@pytest.mark.usefixtures('connected')
def test_the_initial_value_is_computed_by_the_chief_alone():
  def initial_value():
    calls.append(tf.executing_eagerly())
    return tf.zeros([2])

  calls = []
  typed = {'shape': [2], 'dtype': tf.float32}
  _make(_program(is_chief=True), initial_value=initial_value, **typed)
  _make(_program(is_chief=True), initial_value=initial_value, **typed)
  _make(_program(is_chief=False), initial_value=initial_value, **typed)
  assert calls == [True]


@pytest.mark.usefixtures('connected')
@pytest.mark.parametrize('is_chief', [True, False])
def test_a_variable_is_found_on_whatever_ps_it_is(is_chief):
  _make(_program(is_chief=True), ps=1, initial_value=[0.0])
  found = _make(_program(is_chief=is_chief), ps=0)
  assert found.attached
  assert found.device == _DEVICES[1]
  assert found.numpy() == [0.0]


@pytest.mark.usefixtures('connected')
def test_names_come_from_scopes_and_are_numbered():
  program = _program(is_chief=True)
  with tf.name_scope('a'):
    names = [_make(program).name for _ in range(2)]
    with tf.name_scope('b'):
      names.append(_make(program).name)
  names.append(_make(program).name)
  assert names == ['a/v:0', 'a/v_1:0', 'a/b/v:0', 'v:0']


@pytest.mark.usefixtures('connected')
def test_one_that_could_not_be_made_is_made_by_the_next_call():
  def initial_value():
    calls.append(1)
    if len(calls) == 1:
      raise tf.errors.UnavailableError(None, None, 'The ps is lost.')
    return tf.zeros([2])

  calls = []
  program = _program(is_chief=True)
  kwargs = {'initial_value': initial_value, 'shape': [2], 'dtype': tf.float32}
  with pytest.raises(tf.errors.UnavailableError):
    _make(program, **kwargs)
  assert _make(program, **kwargs).name == 'v:0'
  assert _make(program, **kwargs).name == 'v_1:0'


@pytest.mark.usefixtures('connected')
def test_memory_outlives_the_object():
  first = _make(_program(is_chief=True), initial_value=[1.0])
  first.assign([7.0])
  del first
  assert _make(_program(is_chief=True)).numpy() == [7.0]


@pytest.mark.usefixtures('connected')
def test_a_variable_that_lost_its_value_is_made_again():
  variable = _make(_program(is_chief=True), initial_value=[1.0])
  with tf.device(variable.device):
    tf.raw_ops.DestroyResourceOp(resource=variable.handle)
  again = _make(_program(is_chief=True), initial_value=[2.0])
  assert not again.attached
  assert again.numpy() == [2.0]


@pytest.mark.usefixtures('connected')
def test_a_type_that_is_not_known_is_refused():
  with pytest.raises(ValueError, match='must be known before'):
    _make(_program(is_chief=True), initial_value=None)
