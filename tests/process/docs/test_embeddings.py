"""The program of docs/embeddings.md runs as it stands."""

import pytest

from tests.support import pages


@pytest.mark.exhaustive
def test_it_prints_how_many_keys_tables_have(tmp_path):
  program = pages.programs('docs/embeddings.md')['any_ids.py']
  *_, printed = pages.run(tmp_path, program)
  assert f'# {printed}\n' in program
