"""Files and folders that only the user who makes them may use."""

import os
import pathlib
from typing import Any
from typing import IO

FILE_MODE, FOLDER_MODE = 0o600, 0o700


def make_folder(folder: pathlib.Path) -> None:
  """Creates a folder, for this user only, and those that it is in.

  Args:
    folder: the folder; one that exists stays as it is.

  Raises:
    OSError: it cannot be created.
  """
  folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)


def open_file(path: pathlib.Path, mode: str, **options: Any) -> IO[Any]:
  """Opens a file, which gets its mode for this user only if it is new.

  Args:
    path: of the file.
    mode: as for `open`.
    **options: as for `open`.

  Raises:
    OSError: it cannot be opened.
  """
  return open(
    path,
    mode,
    opener=lambda name, flags: os.open(name, flags, FILE_MODE),
    **options,
  )


def keep_to_owner(folder: pathlib.Path) -> None:
  """Takes what this user has in a folder of its own from other users.

  Args:
    folder: for this user only. What others have written into it, such
      as the superuser, stays theirs.

  Raises:
    OSError: a file cannot be changed.
  """
  for path in folder.rglob('*'):
    if path.stat().st_uid == os.geteuid():
      path.chmod(FOLDER_MODE if path.is_dir() else FILE_MODE)
