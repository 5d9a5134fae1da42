"""Tables keyed by any id, on the ps: rows, and which keys they belong to."""
