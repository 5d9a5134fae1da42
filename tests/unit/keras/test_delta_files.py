"""Files of bases and deltas that are damaged, and folders that cannot be."""

import json
import zipfile

import numpy as np
import pytest

import tfps
from tfps.keras.serving import delta_file
from tfps.keras.serving import folder as folder_lib

_VERSION = folder_lib.Version(1, 1)


def _pad(entries):
  entries['rows_0.npy'] += b'x'


def _lose_a_value(entries):
  manifest = json.loads(entries['manifest.json'])
  manifest['parts'][0]['num_changed'] = 3
  entries['manifest.json'] = json.dumps(manifest).encode()


def _repeat_rows(entries):
  entries['rows_0.npy'] = entries['rows_1.npy']


@pytest.mark.parametrize(
  ('damage', 'complaint'),
  [
    (_pad, r'rows_0\.npy is too long'),
    (_lose_a_value, r'values_0 has shape \(2, 8\), not \(3, 8\)'),
    (_repeat_rows, r'rows_0 has shape \(1,\), not \(2,\)'),
  ],
)
def test_arrays_that_do_not_fit_are_told(tmp_path, damage, complaint):
  path = tmp_path / 'delta.npz'
  parts = [
    delta_file.Part(i, 'v', None, np.arange(n), 8, [np.zeros([n, 8], np.uint8)])
    for i, n in enumerate((2, 1))
  ]
  delta_file.write(path, _VERSION, parts)
  with zipfile.ZipFile(path) as archive:
    entries = {name: archive.read(name) for name in archive.namelist()}
  damage(entries)
  with zipfile.ZipFile(path, 'w') as archive:
    for name, data in entries.items():
      archive.writestr(name, data)
  with pytest.raises(
    tfps.CheckpointError,
    match=rf'/delta\.npz is damaged: {complaint}\. Copy it again',
  ):
    delta_file.read(path, _VERSION)


def test_a_directory_that_cannot_be_made_is_told(tmp_path):
  (tmp_path / 'file').touch()
  with pytest.raises(
    tfps.CheckpointError, match=r'/file/deltas, .* cannot be used: .*\. Give an'
  ):
    folder_lib.Folder(tmp_path / 'file' / 'deltas').prepare()


@pytest.mark.parametrize(
  ('manifest', 'complaint'),
  [
    ('{"form', r'tfps_base\.json cannot be read: .*Delete base-00000001'),
    ('{"format": 1}', r'base-00000001 is damaged: .*Copy it again'),
  ],
)
def test_a_base_that_is_damaged_is_told(tmp_path, manifest, complaint):
  base = folder_lib.Folder(tmp_path).base(1)
  base.mkdir()
  (base / folder_lib.MANIFEST).write_text(manifest)
  with pytest.raises(tfps.CheckpointError, match=complaint):
    tfps.serving.DeltaReader(tmp_path)
