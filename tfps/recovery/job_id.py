"""A name that tells a job from all others, kept where its cuts are."""

import os
import pathlib
import re
import uuid

from tfps import errors

_FILE = 'job'
# As a container may be named: without underscores.
_NAME = re.compile(r'tfps-[0-9a-f]{32}')


def name_of(directory: str | os.PathLike[str]) -> str:
  """The name of the job whose cuts are in a directory.

  A directory without one, which is made if it is not there, gets one.

  Raises:
    errors.CheckpointError: the directory cannot be written.
  """
  path = pathlib.Path(directory, _FILE)
  try:
    if path.exists() and _NAME.fullmatch(name := path.read_text()):
      return name
    name = f'tfps-{uuid.uuid4().hex}'
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f'{_FILE}-{os.getpid()}')
    try:
      draft.write_text(name)
      draft.replace(path)
    finally:
      draft.unlink(missing_ok=True)
  except OSError as error:
    raise errors.unwritable(directory, error) from error
  return name
