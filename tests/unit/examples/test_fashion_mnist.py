import gzip
import pathlib
import struct

import numpy as np
import pytest

from tests.support import examples

(images,) = examples.modules('fashion_mnist', 'images')


def _write(path: pathlib.Path, array: np.ndarray) -> None:
  header = struct.pack('>HBB', 0, 8, array.ndim)
  header += struct.pack(f'>{array.ndim}I', *array.shape)
  path.write_bytes(gzip.compress(header + array.tobytes()))


def test_files_of_the_package_are_read(tmp_path):
  pixels = np.arange(2 * 28 * 28, dtype=np.uint8).reshape(2, 28, 28)
  for name in ('train', 't10k'):
    _write(tmp_path / f'{name}-images-idx3-ubyte.gz', pixels)
    _write(tmp_path / f'{name}-labels-idx1-ubyte.gz', np.uint8([7, 2]))
  for part in images.fashion_mnist(tmp_path):
    assert part.pixels.shape == (2, *images.SHAPE)
    np.testing.assert_allclose(part.pixels[..., 0] * 255, pixels, rtol=1e-6)
    assert list(part.labels) == [7, 2]


def test_a_missing_package_is_named(tmp_path):
  with pytest.raises(images.MissingDatasetError, match='apt-get install'):
    images.fashion_mnist(tmp_path)


def test_a_file_of_another_kind_is_refused(tmp_path):
  path = tmp_path / 'train-images-idx3-ubyte.gz'
  path.write_bytes(gzip.compress(b'\x00\x00\x0d\x03'))
  with pytest.raises(ValueError, match='00000d03'):
    images.fashion_mnist(tmp_path)


def test_digits_have_the_same_shape():
  training, held_out = images.digits()
  assert (len(training), len(held_out)) == (1437, 360)
  assert training.pixels.shape == (1437, *images.SHAPE)
  assert training.pixels.max() == held_out.pixels.max() == 1
  assert set(held_out.labels) == set(range(images.NUM_CLASSES))


@pytest.mark.skipif(
  not images.FASHION_MNIST.exists(),
  reason='the package dataset-fashion-mnist is not installed',
)
def test_all_of_fashion_mnist_is_there():
  training, held_out = images.fashion_mnist()
  for part, number in ((training, 6000), (held_out, 1000)):
    assert np.bincount(part.labels).tolist() == [number] * images.NUM_CLASSES
