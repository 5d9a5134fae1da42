"""Update rules that run on the ps, each of them atomic.

`rules` and `adam_rules` say how optimizers compute new values, `applying`
has the ps do it, and `locks` keeps workers from doing it at the same time.
"""
