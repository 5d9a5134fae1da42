"""Loads the weights of a Keras model from a checkpoint, without a cluster.

A checkpoint of TensorFlow has shards of a variable as parts of one tensor, and
files of Keras have whole arrays, so that a cluster's variables are read into
whole ones.
"""

from collections.abc import Iterator
import contextlib
import re
from typing import Any
import warnings
import zipfile

from google.protobuf import message
import tensorflow as tf

from tfps import errors
from tfps.training import checkpoint_files

# Raised for files that are damaged, incomplete or gone.
DAMAGE = (
  tf.errors.OpError,
  OSError,
  LookupError,  # less bytes than the index says
  EOFError,
  zipfile.BadZipFile,
  message.DecodeError,
)

_VALUE = r'/\.ATTRIBUTES/VARIABLE_VALUE$'
_STEPS = (
  re.compile(r'^global_step' + _VALUE),
  re.compile(r'(^|/)_?iterations' + _VALUE),
  re.compile(r'(^|/)(global_)?step' + _VALUE),
)


def load(model: Any, checkpoint: checkpoint_files.CheckpointFile) -> int:
  """Loads all weights of a model.

  Args:
    model: a Keras model that has been built.
    checkpoint: the checkpoint to read.

  Returns:
    The step at which it was saved: its `global_step`, otherwise its optimizer's
    `iterations`, otherwise the number in its name, otherwise 0.

  Raises:
    errors.CheckpointError: it does not have the weights of this model.
    Exception: one of `DAMAGE`, if it cannot be read.
  """
  try:
    if checkpoint.is_keras:
      step = _load_keras(model, checkpoint)
    else:
      step = _load_tensorflow(model, checkpoint)
  except ValueError as error:
    raise errors.CheckpointError(
      f'{checkpoint.path.name} does not fit the model of model_fn: '
      f'{errors.first_line(error)}'
    ) from error
  return (checkpoint.number or 0) if step is None else step


def _load_tensorflow(
  model: Any, checkpoint: checkpoint_files.CheckpointFile
) -> int | None:
  path = str(checkpoint.path)
  reader = tf.train.load_checkpoint(path)
  root = _root(model, tf.train.CheckpointView(path))
  root.restore(path).expect_partial()
  keys = sorted(reader.get_variable_to_shape_map())
  for pattern in _STEPS:
    for key in keys:
      if pattern.search(key):
        return int(reader.get_tensor(key))
  return None


def _root(model: Any, view: Any) -> tf.train.Checkpoint:
  """Returns an object to restore, in which the model is where it was saved.

  Args:
    model: the model.
    view: a `tf.train.CheckpointView`.

  Raises:
    ValueError: the checkpoint has no object with all weights of the model.
  """
  missing = _missing(model, view, 0)
  if not missing:
    return tf.train.Checkpoint(root=model)
  for name, node in view.children(0).items():
    others = _missing(model, view, node)
    if not others:
      return tf.train.Checkpoint(**{name: model})
    missing = min(missing, others, key=len)
  names = ', '.join(weight.path for weight in missing[:5])
  raise ValueError(
    f'it has no value for {names}{", ..." * (len(missing) > 5)}. Save the '
    'model itself or as an attribute of the checkpoint, as in '
    'tf.train.Checkpoint(model=model).'
  )


def _missing(model: Any, view: Any, node: int) -> list[Any]:
  """Returns the weights that an object of a checkpoint does not have."""
  found = {id(trackable) for trackable in _matching(model, view, node)}
  return [weight for weight in model.weights if id(weight) not in found]


def _matching(model: Any, view: Any, node: int) -> Iterator[Any]:
  """Yields the parts of a model whose names an object has, too."""
  objects = tf.train.TrackableView(model)
  to_visit, visited = [(node, model)], {node}
  while to_visit:
    node, trackable = to_visit.pop()
    yield trackable
    if hasattr(trackable, 'restore_otherwise') and view.children(node):
      yield from trackable.weights  # of any number of shards
    children = objects.children(trackable)
    for name, child in view.children(node).items():
      if name in children and child not in visited:
        visited.add(child)
        to_visit.append((child, children[name]))


def _load_keras(
  model: Any, checkpoint: checkpoint_files.CheckpointFile
) -> int | None:
  with warnings.catch_warnings():
    # An evaluator needs no slots, for which Keras warns.
    warnings.filterwarnings('ignore', message='Skipping variable loading')
    model.load_weights(str(checkpoint.path))
  try:
    with _weights_file(checkpoint) as file:
      # Those of an optimizer within a LossScaleOptimizer count the updates.
      optimizer = file['optimizer']
      value = optimizer.get('inner_optimizer', optimizer)['vars/0'][()]
  except KeyError:  # saved without an optimizer
    return None
  return int(value) if value.dtype.kind in 'iu' else None


@contextlib.contextmanager
def _weights_file(checkpoint: checkpoint_files.CheckpointFile) -> Iterator[Any]:
  """Opens the HDF5 file of the weights, which may be within an archive."""
  import h5py  # Keras needs it for these files, too

  if checkpoint.path.suffix == '.h5':
    with h5py.File(checkpoint.path) as file:
      yield file
    return
  with (
    zipfile.ZipFile(checkpoint.path) as archive,
    archive.open('model.weights.h5') as weights,
    h5py.File(weights) as file,
  ):
    yield file
