"""Policies of tables, as Keras saves them."""

from typing import Any

import keras

from tfps.updates.tables import admission as admission_lib
from tfps.updates.tables import eviction as eviction_lib
from tfps.updates.tables import storage as storage_lib

_POLICIES = {
  'admission': (
    admission_lib.Counter,
    admission_lib.BloomCounter,
    admission_lib.Probability,
  ),
  'eviction': (eviction_lib.Ttl, eviction_lib.Lru, eviction_lib.Lfu),
  'storage': (storage_lib.Storage,),
}
for _kinds in _POLICIES.values():
  for _kind in _kinds:
    keras.saving.register_keras_serializable('tfps')(_kind)


def given(name: str, what: str, policy: Any) -> Any:
  """Returns a policy that a table is given, which Keras may have serialized.

  Args:
    name: name of the table.
    what: `admission`, `eviction` or `storage`.
    policy: the policy.

  Raises:
    TypeError: it is something else.
  """
  if isinstance(policy, dict):
    policy = keras.saving.deserialize_keras_object(policy)
  kinds = _POLICIES[what]
  if policy is not None and not isinstance(policy, kinds):
    choices = ', '.join(kind.__name__ for kind in kinds)
    raise TypeError(
      f'{name}: {what}={policy!r}, but it is one of {choices}, or None.'
    )
  return policy
