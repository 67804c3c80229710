"""The lease in ZooKeeper, through kazoo: a queue of ephemeral nodes, one a candidate."""
