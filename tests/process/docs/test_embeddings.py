"""The program of docs/embeddings.md runs as it stands."""

from tests.support import pages


def test_it_prints_how_many_keys_tables_have(tmp_path):
  program = pages.programs('docs/embeddings.md')['any_ids.py']
  *_, printed = pages.run(tmp_path, program)
  assert f'# {printed}\n' in program
