"""What tables of a model have for each key, read from their variables."""

import numpy as np

_FIRST = 1024


def of(model):
  """Returns rows, scores and slots by table and key."""
  return {
    layer.name: _of_table(layer, model.optimizer)
    for layer in model.layers
    if hasattr(layer, 'table')
  }


def assert_near(one, other):
  """Checks that contents are the same but for the last bits of numbers.

  Kernels compute the last of many elements by other instructions than those
  before, so that the order of rows matters.
  """
  assert one.keys() == other.keys()
  for table, keys in one.items():
    assert keys.keys() == other[table].keys()
    for key, values in keys.items():
      assert values.keys() == other[table][key].keys()
      for name, value in values.items():
        np.testing.assert_allclose(value, other[table][key][name], rtol=1e-5)


def counted(table):
  """Returns what admission has counted: by key, and the cells of all shards.

  Args:
    table: whose cells have not been restored from those of several shards.
  """
  by_key, cells = {}, []
  for variables in _shards(table):
    cells += variables.get('admission_cells', np.zeros(0)).tolist()
    if 'candidate_keys' in variables:
      used = variables['candidate_counts'][0]
      keys, counts, addresses = (
        variables[f'candidate_{name}'][_FIRST:used]
        for name in ('keys', 'rows', 'addresses')
      )
      are_used = addresses >= 0
      pairs = zip(keys[are_used], counts[are_used], strict=True)
      for key, count in pairs:
        assert key not in by_key
        by_key[int(key)] = int(count)
  return by_key, cells


def _of_table(layer, optimizer):
  found = {}
  for number, variables in enumerate(_shards(layer.table)):
    for key, values in _of_shard(layer, optimizer, number, variables):
      assert key not in found
      found[key] = values
  assert len(found) == layer.table.num_keys()
  return found


def _shards(table):
  """Yields the variables of each shard by name."""
  number = 0
  while hasattr(table, f'rows_{number}'):
    yield {
      name.removesuffix(f'_{number}'): np.array(value)
      for name, value in vars(table).items()
      if name.endswith(f'_{number}') and hasattr(value, 'numpy')
    }
    number += 1


def _of_shard(layer, optimizer, number, variables):
  prefix = f'{layer.name}_table_rows_{number}_'
  slots = {
    variable.path.rpartition(prefix)[2]: np.array(variable)
    for variable in optimizer.variables
    if prefix in variable.path
  }
  used = variables['counts'][0]
  addresses = variables.get('addresses', np.arange(used))
  for row in range(_FIRST, used):
    if addresses[row] >= 0:
      values = {name: _row(slot, row) for name, slot in slots.items()}
      if addresses[row] >= 2**62:  # not updated since another key had the row
        values = {name: _row(slot, 0) for name, slot in slots.items()}
      values['row'] = _row(variables['rows'], row)
      if 'scores' in variables:
        values['score'] = int(variables['scores'][row])
      yield int(variables['keys'][row]), values


def _row(values, row):
  # A slot ends before rows that have had no update.
  return values[row if row < len(values) else 0].tolist()
