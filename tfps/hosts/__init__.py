"""Has the workers of one host add up their gradients before one of them pushes.

`groups` has who meets whom. The lowest of them that answers has a `posts.Post`,
to which the others have a `links.Link`; arrays stay where they are, in
`memory`, and are read there.
"""
