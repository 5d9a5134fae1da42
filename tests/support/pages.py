"""Programs of the documentation's pages, which run as they stand."""

import pathlib
import re

from tests.support import commands

_ROOT = pathlib.Path(__file__).parents[2]
_PROGRAM = re.compile(r'```python\n# (\w+\.py)\n(.*?)```', re.DOTALL)


def programs(page: str) -> dict[str, str]:
  """The programs of a page, such as 'docs/input.md', by the file's name."""
  return dict(_PROGRAM.findall((_ROOT / page).read_text()))


def write(folder: pathlib.Path, program: str) -> pathlib.Path:
  """Writes a program into a folder; its path."""
  path = folder / 'train.py'
  path.write_text(program)
  return path


def run(folder: pathlib.Path, program: str) -> list[str]:
  """The lines that a program prints, which has to end well, in a folder."""
  done = commands.run(write(folder, program), cwd=folder)
  assert done.status == 0, done.output
  return done.output.strip().splitlines()
