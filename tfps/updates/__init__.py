"""When gradients become updates, and how the ps make them.

```
strategy = tfps.ParameterServerStrategy(
  cluster, updates=tfps.updates.LocalSteps(8, inner_learning_rate=0.01)
)
```

`policies` has what the user chooses from, and `gathering` has several steps
make one update. `meetings` is for workers that wait for each other: `board` has
what they know in common, `courses` what their steps do besides; `turns`, by
`turn_rules`, and `sums` have one of them make an update for all, and
`host_sums` has those of a host push as one; `pace` keeps them together,
`shifts` lets those go that have nothing to do, and `absences` finds those who
will not come. `staleness` tells how old gradients are. `rules` and `adam_rules`
say how optimizers compute new values, `applying` has the ps do it, and `locks`
keeps workers from doing it at the same time.
"""

from tfps.updates.policies import Accumulate
from tfps.updates.policies import Async
from tfps.updates.policies import BoundedStaleness
from tfps.updates.policies import LocalSteps
from tfps.updates.policies import Sync

__all__ = ['Accumulate', 'Async', 'BoundedStaleness', 'LocalSteps', 'Sync']
