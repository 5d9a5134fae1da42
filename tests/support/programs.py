"""Paths of programs that tests launch."""

import pathlib

FOLDER = pathlib.Path(__file__).parents[1] / 'programs'

LAUNCHED = str(FOLDER / 'launched.py')
