"""Metrics of a process and their writers.

```
tfps.monitor.serve(9400)  # Prometheus text, for scrapes
with tfps.monitor.PeriodicWriter([tfps.monitor.JsonLines('metrics.jsonl')]):
  coordinator.train(step_fn, dataset_fn, steps=10_000)
```

Nothing is measured for readers that do not exist: most values are read where
they are kept already, when somebody asks for them.
"""

from tfps.monitor.endpoint import serve
from tfps.monitor.writers import JsonLines
from tfps.monitor.writers import Log
from tfps.monitor.writers import PeriodicWriter
from tfps.monitor.writers import TensorBoard

__all__ = ['JsonLines', 'Log', 'PeriodicWriter', 'TensorBoard', 'serve']
