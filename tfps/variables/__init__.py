"""Where variables live: placement, partitioners, shards and sharing."""
