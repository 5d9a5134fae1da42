"""The program of docs/serving.md runs as it stands."""

import pytest

from tests.support import pages


@pytest.mark.exhaustive
def test_it_serves_what_the_model_predicts(tmp_path):
  program = pages.programs('docs/serving.md')['follow.py']
  *_, is_equal, version = pages.run(tmp_path, program)
  assert (is_equal, version) == ('True', '1')
