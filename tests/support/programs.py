"""Paths of programs that tests launch."""

import pathlib

_FOLDER = pathlib.Path(__file__).parents[1] / 'programs'

LAUNCHED = str(_FOLDER / 'launched.py')
