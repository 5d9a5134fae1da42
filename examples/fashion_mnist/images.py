"""Labelled images of 28 x 28 pixels, from packages that are installed."""

import dataclasses
import gzip
import pathlib
import struct

import numpy as np
from sklearn import datasets

FASHION_MNIST = pathlib.Path('/usr/share/datasets/fashion-mnist')
NUM_CLASSES = 10
SHAPE = (28, 28, 1)

_UNSIGNED_BYTES = 0x08
_DIGITS_HELD_OUT_ONE_IN = 5


class MissingDatasetError(RuntimeError):
  """The images are not installed."""


@dataclasses.dataclass(frozen=True)
class Images:
  """Images with their labels.

  Attributes:
    pixels: from 0 to 1, float32 [images, 28, 28, 1].
    labels: int64 [images].
  """

  pixels: np.ndarray
  labels: np.ndarray

  def __len__(self) -> int:
    return len(self.labels)

  def first(self, number: int) -> 'Images':
    """Some of them."""
    return Images(self.pixels[:number], self.labels[:number])


def fashion_mnist(
  folder: pathlib.Path = FASHION_MNIST,
) -> tuple[Images, Images]:
  """The 60,000 images for training and the 10,000 to be judged by.

  Raises:
    MissingDatasetError: says how to install them.
  """
  return _part(folder, 'train'), _part(folder, 't10k')


def digits(folder: pathlib.Path | None = None) -> tuple[Images, Images]:
  """The 1,797 handwritten digits that scikit-learn has; 360 are held out.

  Each of their 8 x 8 pixels becomes 3 x 3, with a margin of 2 around all. They
  come with the package, in no folder of their own.
  """
  del folder
  found = datasets.load_digits()
  pixels = np.kron(found.images / 16, np.ones([3, 3]))
  pixels = np.pad(pixels, [(0, 0), (2, 2), (2, 2)])[..., np.newaxis]
  pixels, labels = pixels.astype(np.float32), found.target.astype(np.int64)
  held_out = np.arange(len(labels)) % _DIGITS_HELD_OUT_ONE_IN == 0
  return (
    Images(pixels[~held_out], labels[~held_out]),
    Images(pixels[held_out], labels[held_out]),
  )


SETS = {'fashion_mnist': fashion_mnist, 'digits': digits}


def _part(folder: pathlib.Path, name: str) -> Images:
  pixels = _read(folder / f'{name}-images-idx3-ubyte.gz')
  labels = _read(folder / f'{name}-labels-idx1-ubyte.gz')
  return Images(
    (pixels / np.float32(255))[..., np.newaxis], labels.astype(np.int64)
  )


def _read(path: pathlib.Path) -> np.ndarray:
  """An array of bytes in the IDX format."""
  if not path.exists():
    raise MissingDatasetError(
      f'{path} is not there. Debian has it in a package: apt-get install '
      'dataset-fashion-mnist. If the images are elsewhere, say so by --folder. '
      'Or take the digits that come with scikit-learn: --images=digits.'
    )
  data = gzip.decompress(path.read_bytes())
  zeros, kind, num_dimensions = struct.unpack_from('>HBB', data)
  if zeros != 0 or kind != _UNSIGNED_BYTES:
    raise ValueError(
      f'{path}: begins with {data[:4].hex()}, but IDX files of bytes begin '
      'with 000008. Install the package again.'
    )
  shape = struct.unpack_from(f'>{num_dimensions}I', data, 4)
  return np.frombuffer(data, np.uint8, offset=4 + 4 * num_dimensions).reshape(
    shape
  )
