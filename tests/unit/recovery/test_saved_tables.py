"""Tables that are found by the names of variables in a snapshot."""

from tfps.recovery import saved_tables

_ONE = [
  *('a/table/rows_0', 'a/table/keys_0', 'a/table/counts_0'),
  *('a/table/rows_1', 'a/table/keys_1', 'a/table/counts_1'),
]


def test_tables_have_the_variables_of_their_shards():
  keys = [
    'dense/kernel',
    *_ONE,
    'rows_0#1',
    'candidate_rows_0#1',
    'admission_cells_0#1',
    'global_step',
    'rows_0_2',  # as processes share them
    'a_table_rows_1_momentum',
  ]
  assert saved_tables.find(keys) == [
    [
      {name: f'a/table/{name}_{i}' for name in ('rows', 'keys', 'counts')}
      for i in range(2)
    ],
    [
      {
        'rows': 'rows_0#1',
        'candidate_rows': 'candidate_rows_0#1',
        'admission_cells': 'admission_cells_0#1',
      }
    ],
    [{'rows': 'rows_0_2'}],
  ]


def test_variables_of_like_names_make_no_table():
  assert saved_tables.find(['keys_0', 'rows_1', 'counts', 'rows']) == []


def test_tables_are_alike_if_they_have_as_many_shards():
  assert saved_tables.are_alike(_ONE, [f'{key}#1' for key in _ONE])
  assert not saved_tables.are_alike(_ONE, _ONE[:3])
  assert not saved_tables.are_alike(_ONE, [])
