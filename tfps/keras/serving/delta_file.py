"""Delta file: rows of variables that have changed since the file before.

It is a file of numpy's format `.npz`: a zip archive, whose entries have
checksums and whose directory is at the end. `manifest.json` in it has the
number of the format, the delta's place, and a list of parts. Part i has the
arrays `rows_i`, the numbers of rows, and `values_i`, the bytes of each.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import json
import pathlib
from typing import Any
from typing import IO
import zipfile
import zlib

import numpy as np

from tfps import errors
from tfps.keras.serving import folder

_MANIFEST = 'manifest.json'


@dataclasses.dataclass(frozen=True)
class Part:
  """Changed rows of a variable or of a shard of it.

  Attributes:
    variable: number of the variable in the SavedModel.
    name: its name.
    num_rows: how many rows a growing variable has; None for others. New rows
      that are not in `rows` are like the first row.
    rows: int64 numbers of the rows, in the whole variable; 0 of a scalar.
    row_bytes: size of a row.
    values: uint8 arrays of shape [n, row_bytes], of as many rows in total.
  """

  variable: int
  name: str
  num_rows: int | None
  rows: np.ndarray
  row_bytes: int
  values: Iterable[np.ndarray]


def write(
  path: pathlib.Path, version: folder.Version, parts: Sequence[Part]
) -> None:
  """Writes a file; values are read while it is written.

  Args:
    path: where.
    version: state of the model after the delta.
    parts: at most one for each variable or shard.

  Raises:
    OSError: it could not be written.
  """
  manifest = {
    'format': folder.FORMAT,
    'base': version.base,
    'sequence': version.sequence,
    'parts': [
      {
        'variable': part.variable,
        'name': part.name,
        'num_rows': part.num_rows,
        'num_changed': len(part.rows),
        'row_bytes': part.row_bytes,
      }
      for part in parts
    ],
  }
  with zipfile.ZipFile(path, 'w') as archive:
    archive.writestr(_MANIFEST, json.dumps(manifest, indent=1))
    for i, part in enumerate(parts):
      shape = len(part.rows), part.row_bytes
      with archive.open(f'rows_{i}.npy', 'w', force_zip64=True) as file:
        np.lib.format.write_array(file, part.rows, allow_pickle=False)
      with archive.open(f'values_{i}.npy', 'w', force_zip64=True) as file:
        _write_header(file, shape)
        for values in part.values:
          file.write(np.ascontiguousarray(values).data)


def read(path: pathlib.Path, version: folder.Version) -> list[Part]:
  """Reads a file, and checks all of it.

  Args:
    path: where.
    version: state of the model after the delta.

  Raises:
    errors.CheckpointError: it is damaged, of another format, or another delta.
  """
  try:
    with zipfile.ZipFile(path) as archive:
      manifest = dict(json.loads(archive.read(_MANIFEST)))
      folder.check_format(path, manifest)
      parts = list(_parts(archive, manifest))
      found = folder.Version(manifest['base'], manifest['sequence'])
  except (
    *(OSError, zipfile.BadZipFile, zlib.error, EOFError),
    *(ValueError, KeyError, TypeError),
  ) as error:
    raise errors.CheckpointError(
      f'{path} is damaged: {errors.first_line(error)}. Copy it again from '
      'where it was written, or start Deltas again, which writes a new base.'
    ) from error
  if found != version:
    raise errors.CheckpointError(
      f'{path} contains delta {found.sequence} of base {found.base}. Copy the '
      'file of that name again from where it was written.'
    )
  return parts


def _parts(
  archive: zipfile.ZipFile, manifest: dict[str, Any]
) -> Iterator[Part]:
  for i, part in enumerate(manifest['parts']):
    rows, values = (
      _read_array(archive, f'{what}_{i}.npy') for what in ('rows', 'values')
    )
    shape = part['num_changed'], part['row_bytes']
    if values.shape != shape:
      raise ValueError(f'values_{i} has shape {values.shape}, not {shape}')
    if rows.shape != shape[:1]:
      raise ValueError(f'rows_{i} has shape {rows.shape}, not {shape[:1]}')
    yield Part(
      part['variable'],
      part['name'],
      part['num_rows'],
      rows,
      part['row_bytes'],
      [values],
    )


def _read_array(archive: zipfile.ZipFile, name: str) -> np.ndarray:
  with archive.open(name) as file:
    array: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
    # The checksum is compared at the end.
    if file.read(1):
      raise ValueError(f'{name} is too long')
  return array


def _write_header(file: IO[bytes], shape: tuple[int, int]) -> None:
  np.lib.format.write_array_header_1_0(
    file, {'descr': '|u1', 'fortran_order': False, 'shape': shape}
  )
