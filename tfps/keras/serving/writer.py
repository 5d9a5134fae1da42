"""Writer of a base and of the deltas that follow it."""

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import pathlib
from typing import Any

import tensorflow as tf

from tfps import errors
from tfps._compat import saved_models
from tfps.keras.serving import changed_rows
from tfps.keras.serving import changed_variables
from tfps.keras.serving import delta_file
from tfps.keras.serving import folder as folder_lib
from tfps.keras.serving import pieces as pieces_lib
from tfps.keras.serving import reader as reader_lib


class Writer:
  """Writes a base of a model, and then what changes.

  The digests of rows on the ps are those of what is on disk, and are noted only
  once it is there. So a write that fails is made up for by the next one.

  Args:
    folder: where to write.
    model: a Keras model that is built.
    keep: how many bases are kept.
    input_signature: that of `model.export`.

  Raises:
    ValueError: the directory has other files or another model's base, or a
      variable holds strings.
    errors.CheckpointError: the base could not be written.
    tf.errors.OpError: a ps is lost.
  """

  def __init__(
    self,
    folder: folder_lib.Folder,
    model: Any,
    keep: int,
    input_signature: Sequence[Any] | None = None,
  ) -> None:
    self._folder = folder
    self._keep = keep
    self._input_signature = input_signature
    variables = model.variables
    self._manifest = {'variables': [_described(each) for each in variables]}
    folder.prepare()
    bases = folder.bases()
    if bases:
      self._check_model(bases[-1])
    self._pieces = pieces_lib.pieces_of(variables)
    self._shadows: changed_rows.Shadows | None = None
    self._version = folder_lib.Version(max(bases, default=0), 0)
    self._base_bytes = self._delta_bytes = 0
    self._write_first_base(model)

  def write(self) -> int:
    """Writes a delta unless nothing has changed; returns its size in bytes.

    Raises:
      errors.CheckpointError: it could not be written.
      tf.errors.OpError: a ps is lost.
    """
    if self._shadows is None:
      with _explaining(self._folder, (OSError, ValueError)):
        model = reader_lib.DeltaReader(self._folder.path).model
      self._shadows = self._make_shadows(model)
    changes = self._shadows.find()
    if not changes:
      return 0
    version = self._version._replace(sequence=self._version.sequence + 1)
    with _explaining(self._folder), self._folder.draft('delta') as draft:
      delta_file.write(draft, version, [_part(each) for each in changes])
      num_bytes = folder_lib.publish(draft, self._folder.delta(version))
    self._version = version
    self._delta_bytes += num_bytes
    self._shadows.note(changes)
    if self._delta_bytes > self._base_bytes:
      self._write_next_base()
    return num_bytes

  def distrust(self) -> None:
    """Discards the digests; the next write makes them of what is on disk."""
    self._shadows = None

  def _write_first_base(self, model: Any) -> None:
    with _explaining(self._folder):
      with self._folder.draft('export') as draft:
        model.export(
          draft, verbose=False, input_signature=self._input_signature
        )
        loaded = saved_models.load(draft)
      self._shadows = self._make_shadows(loaded)
      # Others may have trained while it was exported.
      changes = self._shadows.find()
      changed_variables.apply(loaded, map(_part, changes))
      with self._folder.draft('base') as draft:
        saved_models.save(loaded, draft)
        self._publish(draft, {})
    self._shadows.note(changes)

  def _write_next_base(self) -> None:
    """Writes a base that is equal to the present one with its deltas."""
    with (
      _explaining(self._folder, (OSError, tf.errors.OpError)),
      self._folder.draft('base') as draft,
    ):
      reader_lib.DeltaReader(self._folder.path).save(draft)
      self._publish(draft, {'follows': list(self._version)})

  def _publish(self, draft: pathlib.Path, manifest: dict[str, Any]) -> None:
    number = self._version.base + 1
    self._base_bytes = self._folder.publish_base(
      draft, number, {**self._manifest, **manifest}
    )
    self._version = folder_lib.Version(number, 0)
    self._delta_bytes = 0
    self._folder.remove_before(self._folder.bases()[-self._keep :][0])

  def _make_shadows(self, model: Any) -> changed_rows.Shadows:
    return changed_rows.Shadows(
      self._pieces, lambda piece: model.variables[piece.number].read_value()
    )

  def _check_model(self, base: int) -> None:
    found = self._folder.manifest(base).get('variables')
    own = self._manifest['variables']
    if found == own:
      return
    others = [each for each in own if each not in (found or [])]
    raise ValueError(
      f'{self._folder.base(base)} is of another model: this one has '
      f'{others[0] if others else "fewer variables"}. Give each model a '
      'directory of its own.'
    )


def _part(change: changed_rows.Change) -> delta_file.Part:
  piece = change.piece
  return delta_file.Part(
    piece.number,
    piece.name,
    change.num_rows if piece.grows else None,
    change.rows + piece.first,
    piece.row_bytes,
    change.values(),
  )


def _described(variable: Any) -> dict[str, Any]:
  shape = list(variable.shape)
  return {'name': variable.path, 'dtype': variable.dtype, 'shape': shape}


@contextlib.contextmanager
def _explaining(
  folder: folder_lib.Folder,
  kinds: tuple[type[Exception], ...] = (OSError,),
) -> Iterator[None]:
  try:
    yield
  except kinds as error:
    raise errors.CheckpointError(
      f'{folder.path} cannot be written to: {errors.first_line(error)}'
    ) from error
