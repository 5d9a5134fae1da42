"""The table of engines in a page."""

import pytest

from tests.launch import matrix

_PAGE = """\
before
<!-- what each engine was seen to do: make engines -->
<!-- end -->
after
"""


def test_cells_are_added_and_others_stay():
  once = matrix.update(_PAGE, {('trains', 'a'): 'yes', ('fails', 'a'): 'no x'})
  twice = matrix.update(once, {('trains', 'b'): 'yes', ('fails', 'a'): 'yes'})
  assert (
    twice
    == """\
before
<!-- what each engine was seen to do: make engines -->
|  | a | b |
| --- | --- | --- |
| trains | yes | yes |
| fails | yes | not run |
<!-- end -->
after
"""
  )


def test_a_page_without_a_place_is_refused():
  with pytest.raises(ValueError, match='has no'):
    matrix.update('page', {})


def test_the_page_has_a_place():
  text = matrix.PAGE.read_text()
  assert matrix.update(text, {('row', 'column'): 'x'}) != text
