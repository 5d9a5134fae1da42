"""When gradients become updates, and how the ps make them.

```
strategy = tfps.ParameterServerStrategy(
  cluster, updates=tfps.updates.LocalSteps(8, inner_learning_rate=0.01)
)
```

`policies` has what the user chooses from, and `gathering` has several steps
make one update. `rules` and `adam_rules` say how optimizers compute new values,
`applying` has the ps do it, and `locks` keeps workers from doing it at the same
time.
"""

from tfps.updates.policies import Accumulate
from tfps.updates.policies import Async
from tfps.updates.policies import LocalSteps

__all__ = ['Accumulate', 'Async', 'LocalSteps']
