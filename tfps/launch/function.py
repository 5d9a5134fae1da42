"""Function that an engine runs as a task's program, in a process of its own.

`python -m tfps.launch.function FOLDER` calls the function that `store` has left
in the folder, and leaves what it returns, which `stored_result` finds.
"""

from collections.abc import Callable
import dataclasses
import importlib
import os
import pathlib
import pickle
import sys
from typing import Any

MODULE = 'tfps.launch.function'

_CALL = 'call'
_RESULT = 'result'


@dataclasses.dataclass(frozen=True)
class Call:
  """A pickled function with its arguments.

  Attributes:
    name: of the function.
    pickler: the module with `dumps`, a cloudpickle, that pickles.
    pickled: the function and its arguments.
  """

  name: str
  pickler: str
  pickled: bytes

  @classmethod
  def of(
    cls, function: Callable[..., object], args: tuple[Any, ...], *, pickler: str
  ) -> 'Call':
    """Returns the call of a function.

    Args:
      function: the function; one of a script is pickled with all that it
        refers to, one of a module only by its name.
      args: its arguments.
      pickler: as the attribute.

    Raises:
      ValueError: the function or an argument cannot be pickled.
    """
    name = getattr(function, '__qualname__', repr(function))
    try:
      pickled = importlib.import_module(pickler).dumps((function, args))
    except Exception as error:  # whatever the __reduce__ of an object raises
      raise ValueError(
        f'The function {name} cannot be sent to the tasks: {error}. Make what '
        'it needs inside of it, or give the path of a program.'
      ) from error
    return cls(name, pickler, pickled)

  def run(self) -> bytes:
    """Calls the function and returns its pickled result.

    Raises:
      ValueError: the result cannot be pickled.
    """
    function, args = pickle.loads(self.pickled)
    result = function(*args)
    try:
      return bytes(importlib.import_module(self.pickler).dumps(result))
    except Exception as error:  # as above
      raise ValueError(
        f'{self.name} returned a {type(result).__name__}, which cannot be '
        f'sent to the caller: {error}. Return plain values or NumPy arrays.'
      ) from error


def store(call: Call, folder: pathlib.Path, *, wants_result: bool) -> None:
  """Leaves a call in a folder, for a process that runs it.

  Args:
    call: the call.
    folder: an existing folder.
    wants_result: whether to keep the result.
  """
  message = call, list(sys.path), wants_result
  (folder / _CALL).write_bytes(pickle.dumps(message))


def stored_result(folder: pathlib.Path) -> bytes | None:
  """Returns the pickled result that was left in a folder, if any was.

  Args:
    folder: the folder.
  """
  path = folder / _RESULT
  return path.read_bytes() if path.exists() else None


def main(folder: pathlib.Path) -> None:
  """Runs the call in a folder.

  Args:
    folder: the folder.
  """
  call, paths, wants_result = pickle.loads((folder / _CALL).read_bytes())
  # Where the engine's own process finds modules, such as the driver's folder.
  sys.path += [path for path in paths if path not in sys.path]
  result = call.run()
  if wants_result:
    unfinished = folder / f'{_RESULT}.new'
    unfinished.write_bytes(result)
    os.replace(unfinished, folder / _RESULT)


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1]))
