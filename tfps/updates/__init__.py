"""When gradients become updates, and how the ps make them.

```
strategy = tfps.ParameterServerStrategy(
  cluster, updates=tfps.updates.LocalSteps(8, inner_learning_rate=0.01)
)
```

`policies` has the classes that users choose from, and `accumulation` makes one
update of several steps. `rules` and `adam_rules` compute new values as the
optimizers do, `apply` has the ps do it, `ps_lock` keeps workers from doing it
at the same time, and `staleness` measures how old gradients are. The package
`sync` synchronizes workers through state on the ps, and `allreduce` adds up
gradients among the workers themselves.
"""

from tfps.updates.policies import Accumulate
from tfps.updates.policies import Async
from tfps.updates.policies import BoundedStaleness
from tfps.updates.policies import LocalSteps
from tfps.updates.policies import Sync

__all__ = ['Accumulate', 'Async', 'BoundedStaleness', 'LocalSteps', 'Sync']
