"""Evaluations of earlier runs, and directories that cannot have any."""

import pytest

import tfps
from tfps.training import evaluation_records


def test_a_directory_that_cannot_be_made_is_told(tmp_path):
  (tmp_path / 'file').touch()
  with pytest.raises(
    tfps.CheckpointError, match=r'/file/out, .* cannot be written: .* as output'
  ):
    evaluation_records.Records(tmp_path / 'file' / 'out', None)


def test_lines_that_are_no_evaluations_are_told(tmp_path, caplog):
  path = tmp_path / 'evaluations.jsonl'
  path.write_text('{"step": 1}\n')
  assert not evaluation_records.Records(tmp_path, None).evaluations
  (record,) = caplog.records
  text = f'{path}: a line is ignored: \'{{"step": 1}}\' is no evaluation.'
  assert record.getMessage() == text
