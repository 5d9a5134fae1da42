"""Updates: policies, rules, and their application on the ps.

```
strategy = tfps.ParameterServerStrategy(
  cluster, updates=tfps.updates.LocalSteps(8, inner_learning_rate=0.01)
)
```

`policies` has the classes that users choose from; `accumulation` makes one
update of several steps. `rules` and `adam_rules` compute new values as Keras'
optimizers do, `apply` runs them on the ps under the locks of `ps_lock`, and
`staleness` measures how old gradients are. The package `sync` synchronizes
workers through state on the ps; `allreduce` adds up gradients among the
workers.
"""

from tfps.updates.policies import Accumulate
from tfps.updates.policies import Async
from tfps.updates.policies import BoundedStaleness
from tfps.updates.policies import LocalSteps
from tfps.updates.policies import Sync

__all__ = ['Accumulate', 'Async', 'BoundedStaleness', 'LocalSteps', 'Sync']
