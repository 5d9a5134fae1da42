"""Vectors of embeddings in Parquet files, for indexes and stores of vectors."""

from collections.abc import Iterator
import os
import pathlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfps._compat import keras_variables
from tfps._compat import side_executor
from tfps.keras.embeddings import layer as layer_lib
from tfps.keras.embeddings import table as table_lib
from tfps.variables import row_writes

_INSTALL = (
  "Install it: pip install 'tfps[parquet]'. Vectors are written with pyarrow."
)


def export_vectors(layer: Any, path: str | os.PathLike[str]) -> int:
  """Writes the vectors of an embedding to a Parquet file, part by part.

  No process holds more than a part of 8 MiB. Together with a model of the other
  layers, which takes vectors, they serve what is too large for one SavedModel,
  or what is looked up by nearest neighbours.

  Columns are `key`, int64, and `vector`, a list of `width` numbers. Keys of a
  static layer are its ids, in order. Strings are the numbers that
  `tf.strings.to_hash_bucket_fast(keys, 2**63 - 1)` returns for them.

  Args:
    layer: `tfps.embeddings.Embedding`, `tfps.embeddings.Table` or
      `keras.layers.Embedding`, which has been built.
    path: of the file, which gets this name when it is complete; one that is
      there is replaced.

  Returns:
    How many vectors were written.

  Raises:
    ImportError: pyarrow is not installed.
    TypeError: the layer is another one.
    ValueError: it has not been built.
    OSError: the file cannot be written.
    tf.errors.OpError: a ps is lost.
  """
  try:
    import pyarrow as pa
    from pyarrow import parquet
  except ImportError as error:
    raise ImportError(_INSTALL) from error
  parts, width, dtype = _parts_of(layer)
  path = pathlib.Path(path)
  draft = path.with_name(f'.{path.name}.{os.getpid()}')
  kind = pa.list_(pa.from_numpy_dtype(dtype), width)
  schema = pa.schema([('key', pa.int64()), ('vector', kind)])
  number = 0
  try:
    with parquet.ParquetWriter(draft, schema) as writer:
      for keys, rows in parts:
        flat = pa.array(rows.astype(dtype, copy=False).reshape(-1))
        vectors = pa.FixedSizeListArray.from_arrays(flat, width)
        writer.write_table(pa.table([keys, vectors], schema=schema))
        number += len(keys)
    draft.replace(path)
  finally:
    draft.unlink(missing_ok=True)
  return number


def _parts_of(
  layer: Any,
) -> tuple[Iterator[tuple[np.ndarray, np.ndarray]], int, np.dtype]:
  """Returns parts of keys and rows, elements of a row, and their type."""
  table = layer.table if isinstance(layer, layer_lib.Embedding) else layer
  if isinstance(table, table_lib.Table):
    _check_built(table)
    return table.items(), table.width, _dtype(table.variable_dtype)
  if isinstance(layer, keras.layers.Embedding):
    _check_built(layer)
    variable = keras_variables.value_of(layer.embeddings)
    return _rows(variable), layer.output_dim, _dtype(layer.variable_dtype)
  raise TypeError(
    f'export_vectors: {layer!r} has no vectors. It takes '
    'tfps.embeddings.Embedding, tfps.embeddings.Table and '
    'keras.layers.Embedding.'
  )


def _check_built(layer: Any) -> None:
  if not layer.built:
    raise ValueError(
      f'export_vectors: {layer.name} has not been built, so that it has no '
      'vectors. Call it, or its build(), or load its values first.'
    )


def _dtype(name: str) -> np.dtype:
  """Returns the type in a file; Parquet has no bfloat16."""
  return np.dtype('float32' if name == 'bfloat16' else name)


def _rows(variable: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Yields the numbers and rows of a variable, which may be in shards."""
  before = 0
  for shard in row_writes.shards_of(variable):
    total, width = shard.shape
    step = max(1, row_writes.SLICE_BYTES // (width * shard.dtype.size))
    for first in range(0, total, step):
      numbers = np.arange(first, min(first + step, total))
      with side_executor.run_aside(shard.device):
        rows = tf.raw_ops.ResourceGather(
          resource=shard.handle, indices=numbers, dtype=shard.dtype
        ).numpy()
      yield before + numbers, rows
    before += total
