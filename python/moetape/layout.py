"""Which rows of a router's batch are which tokens of this rank's step: what Recorder.commit takes as layout=.

    rec.commit(slots, layout=moetape.layout.dp_concat([3, 5], rank=1))

A layout's numbers are checked against the batch that arrives, and by Layout.place. IdMap turns physical ids
into logical ones where an engine can only be tapped behind its own map.
"""

from moetape._moetape import IdMap, Layout

whole = Layout.whole
graph_padded = Layout.graph_padded
dp_concat = Layout.dp_concat
dp_padded = Layout.dp_padded
dp_shards = Layout.dp_shards
tp_shard = Layout.tp_shard
tp_split = Layout.tp_split
rows = Layout.rows
infer = Layout.infer

__all__ = [
    "IdMap",
    "Layout",
    "dp_concat",
    "dp_padded",
    "dp_shards",
    "graph_padded",
    "infer",
    "rows",
    "tp_shard",
    "tp_split",
    "whole",
]
