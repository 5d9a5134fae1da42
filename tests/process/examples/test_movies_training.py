"""Two towers learn to rank movies, and are served without tfps."""

import re

import pytest

from tests.support import commands
from tests.support import examples

_FOLDER = examples.FOLDER / 'movies'


@pytest.mark.exhaustive
def test_the_demo_ranks_better_than_by_popularity(tmp_path):
  done = commands.run(
    _FOLDER / 'demo.py', f'--output_dir={tmp_path}', '--', '--epochs=3'
  )
  assert done.status == 0, done.output
  popular, cluster, alone = (
    float(re.search(rf'\n{name} +(0\.\d+) ', done.output)[1])
    for name in ('popular', 'cluster', 'alone')
  )
  assert 0.2 < popular < 0.22
  assert min(cluster, alone) > 0.3
  assert cluster == pytest.approx(alone, abs=0.04)
  assert (
    len(re.findall('^  .+', done.output.partition('User 196')[2], re.M)) == 15
  )
  recommend = (
    _FOLDER / 'recommend.py',
    f'--data={tmp_path}/data',
    f'--output_dir={tmp_path}/cluster',
  )
  unknown = commands.run(*recommend, '--user=5000')
  assert unknown.status != 0
  assert '--user=5000: there are the users 1 to 943' in unknown.output
