"""The network learns on clusters."""

import re

import pytest

from tests.support import commands
from tests.support import examples

(images,) = examples.modules('fashion_mnist', 'images')
_FOLDER = examples.FOLDER / 'fashion_mnist'

_DIGITS = ('--images=digits', '--epochs=5')


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  ('num_chiefs', 'num_ps'),
  [(1, 1), (0, 2)],
  ids=['coordinator', 'between graphs'],
)
def test_the_network_learns(tmp_path, capfd, num_chiefs, num_ps):
  done = commands.launch(
    capfd,
    f'--num_chiefs={num_chiefs}',
    f'--num_ps={num_ps}',
    '--num_workers=2',
    f'--log_dir={tmp_path}',
    _FOLDER / 'train.py',
    *_DIGITS,
  )
  assert done.status == 0, done.output
  holding = re.findall(r'ps:\d +\d+ +[\d,]*[1-9][\d,]*\n', done.output)
  assert len(holding) == num_ps
  ((steps, accuracy),) = re.findall(
    r'(\d+) steps, held-out accuracy (\S+)', done.output
  )
  assert 60 <= int(steps) <= 70  # 60, and what others had begun
  assert float(accuracy) > 0.7
