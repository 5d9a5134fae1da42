"""Values are kept safe from ps to ps and by ps, and pass no chief."""

import pytest

from tests.support import on_hosts

_TIMES = 20


@on_hosts.needs_network
@pytest.mark.exhaustive  # four processes import TensorFlow, each by itself
@pytest.mark.parametrize(
  'strategy', ['ParameterServerStrategy', 'BetweenGraphStrategy']
)
def test_values_do_not_go_through_the_chief(strategy, tmp_path):
  chief, ps = on_hosts.keep(strategy, tmp_path, _TIMES)
  assert list((tmp_path / 'cuts').glob('snapshot-*'))
  num_bytes = _TIMES * on_hosts.NUM_BYTES
  assert max(each.sent for each in ps) > num_bytes
  assert max(each.received for each in ps) > num_bytes
  # The chief makes the value, and the first one of its replica.
  assert chief.sent < num_bytes / 2
  assert chief.received < 1.5 * on_hosts.NUM_BYTES
