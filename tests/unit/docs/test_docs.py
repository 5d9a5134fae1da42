"""What the documentation links to is there."""

import pathlib
import re

import pytest

_ROOT = pathlib.Path(__file__).parents[3]
_PAGES = sorted(
  page.relative_to(_ROOT)
  for page in (*_ROOT.glob('*.md'), *_ROOT.glob('*/**/*.md'))
  if not any(part.startswith('.') for part in page.relative_to(_ROOT).parts)
)
_LINK = re.compile(r'\]\(([^)#\s]+)(?:#(\w+))?\)')


@pytest.mark.parametrize('page', _PAGES, ids=str)
def test_links_lead_somewhere(page):
  for target, anchor in _LINK.findall((_ROOT / page).read_text()):
    if '://' not in target:
      path = (_ROOT / page.parent / target).resolve()
      assert path.exists(), target
      assert path.suffix != '.py' or f'def {anchor}' in path.read_text(), anchor
